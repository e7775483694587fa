#include "text/launch/process_end.h"

#include <c10/util/StringUtil.h>

#include <cstring>

namespace mezzo::text {

std::string signal_name(int signal) {
  const char* name = ::sigabbrev_np(signal);
  return name != nullptr ? std::string("SIG") + name : "real-time signal";
}

std::string ProcessEnd::to_string() const {
  return by_signal ? c10::str("was killed by signal ", value, " (", signal_name(value), ")")
                   : c10::str("ended with exit status ", value);
}

}  // namespace mezzo::text
