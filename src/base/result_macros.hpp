// Early return of errors. The only macros of the project that declare anything. A Result is looked
// at before its value is used, in one line, so that no error is dropped. Private: public headers do
// not define macros.
#pragma once

#include "volvelle/base/result.hpp"

#define VOLVELLE_CONCAT_INNER(a, b) a##b
#define VOLVELLE_CONCAT(a, b) VOLVELLE_CONCAT_INNER(a, b)

/// Returns the error of `expr` (a Status or Result) from this function, if it has one.
#define VOLVELLE_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                        \
    if (auto volvelle_status = (expr); !volvelle_status.ok()) return volvelle_status.error(); \
  } while (false)

/// VOLVELLE_ASSIGN_OR_RETURN(auto x, make_x()): x is the value, or this function returns the error.
#define VOLVELLE_ASSIGN_OR_RETURN(lhs, expr) \
  VOLVELLE_ASSIGN_OR_RETURN_INNER(VOLVELLE_CONCAT(volvelle_result_, __LINE__), lhs, expr)
#define VOLVELLE_ASSIGN_OR_RETURN_INNER(result, lhs, expr) \
  auto result = (expr);                                    \
  if (!result.ok()) return result.error();                 \
  lhs = std::move(result).value()
