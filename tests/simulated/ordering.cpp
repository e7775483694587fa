#include "simulated/ordering.h"

#include <c10/util/StringUtil.h>

#include <algorithm>

#include "simulated/report.h"

namespace mezzo::simulated {

std::mutex& order_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}

void join(Clock& clock, const Clock& other) {
  clock.resize(std::max(clock.size(), other.size()));
  for (size_t i = 0; i < other.size(); ++i) {
    clock[i] = std::max(clock[i], other[i]);
  }
}

void AccessHistory::add(const Access& access, const Clock& clock, bool writes) {
  const auto check = [&](const std::vector<Access>& earlier, const char* verb) {
    for (const Access& other : earlier) {
      if (!other.is_before(clock)) {
        note_fault(c10::str(access.kernel, " on stream ", access.stream, writes ? " writes" : " reads", " memory that ",
                            other.kernel, " on stream ", other.stream, verb, ", and no event puts the two in order"));
      }
    }
  };
  check(writes_, " writes");
  if (writes) {
    check(reads_, " reads");
    writes_.assign(1, access);
    reads_.clear();
  } else {
    std::erase_if(reads_, [&](const Access& other) { return other.stream == access.stream; });
    reads_.push_back(access);
  }
}

void AccessHistory::check_freed(const Clock& clock, const std::vector<size_t>& recorded_streams) const {
  for (const auto* accesses : {&writes_, &reads_}) {
    for (const Access& access : *accesses) {
      const bool is_recorded = std::ranges::find(recorded_streams, access.stream) != recorded_streams.end();
      if (!is_recorded && !access.is_before(clock)) {
        note_fault(c10::str("memory is freed that ", access.kernel, " on stream ", access.stream,
                            " may still use; it was not told by record_stream"));
      }
    }
  }
}

}  // namespace mezzo::simulated
