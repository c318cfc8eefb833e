// A Position must not convert into an index by itself, nor compare with a Row.
#include "volvelle/base/ids.hpp"

bool same(volvelle::Position position, volvelle::Row row) {
#ifdef VOLVELLE_BAD_LINE
  return position == row;
#else
  return position.value() == row.value();
#endif
}
