#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

/// What happens before what, by vector clocks: an entry for each stream says how much of its work
/// has been seen. The host is one more participant. It learns of the work that it waits for. Work
/// that it starts comes after all it knows. All threads of the host count as one.
namespace mezzo::simulated {

using Clock = std::vector<uint64_t>;  ///< by number of the stream

/// Guards all clocks, accesses and reports.
std::mutex& order_mutex();

void join(Clock& clock, const Clock& other);

/// One kernel's use of some memory.
struct Access {
  size_t stream;
  uint64_t time;  ///< of that stream
  std::string kernel;

  bool is_before(const Clock& clock) const { return stream < clock.size() && time <= clock[stream]; }
};

/// Who used some memory last. Call all with order_mutex() held.
class AccessHistory {
 public:
  /// Reports a fault if `access`, at the time `clock`, is not ordered after its dependencies.
  void add(const Access& access, const Clock& clock, bool writes);
  /// Reports a fault where memory is given back, for use by whatever comes after `clock`,
  /// while others still use it.
  void check_freed(const Clock& clock, const std::vector<size_t>& recorded_streams) const;

 private:
  std::vector<Access> writes_;  ///< the last, if any
  std::vector<Access> reads_;   ///< since then
};

}  // namespace mezzo::simulated
