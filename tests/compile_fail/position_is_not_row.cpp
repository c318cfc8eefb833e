// A Position must not convert into a Row.
#include "volvelle/base/ids.hpp"

volvelle::Row row_of(volvelle::Position position) {
#ifdef VOLVELLE_BAD_LINE
  return position;
#else
  return volvelle::Row(position.value());
#endif
}
