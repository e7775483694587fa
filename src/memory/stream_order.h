#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace mezzo {

/// `second` runs its next work after the work that `first` has so far; both of one device type.
inline void put_in_order(c10::Stream first, c10::Stream second) {
  if (first != second) {
    c10::Event event(first.device_type());
    event.record(first);
    event.block(second);
  }
}

}  // namespace mezzo
