#include "distributed/group/comm_ledger.h"

#include <algorithm>

namespace mezzo::distributed {
namespace {

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

}  // namespace

CommStats CommLedger::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void CommLedger::begin_step() {
  const std::lock_guard lock(mutex_);
  ++stats_.steps;
  stats_.last_step = {};
  compute_ended_at_.reset();
}

void CommLedger::add_bucket() {
  const std::lock_guard lock(mutex_);
  ++stats_.last_step.buckets;
  ++stats_.total.buckets;
}

void CommLedger::add_other_bytes(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  stats_.last_step.other_bytes += bytes;
  stats_.total.other_bytes += bytes;
}

void CommLedger::begin_collective(int64_t bytes, bool timed) {
  const std::lock_guard lock(mutex_);
  for (CommTraffic* traffic : {&stats_.last_step, &stats_.total}) {
    ++traffic->collectives;
    traffic->gradient_bytes += bytes;
  }
  if (timed && under_way_++ == 0) {
    busy_since_ = Clock::now();
  }
}

void CommLedger::end_collective() {
  const std::lock_guard lock(mutex_);
  if (--under_way_ > 0) {
    return;
  }
  const auto now = Clock::now();
  for (CommTraffic* traffic : {&stats_.last_step, &stats_.total}) {
    traffic->seconds += seconds_between(busy_since_, now);
    if (compute_ended_at_) {
      traffic->exposed_seconds += seconds_between(std::max(busy_since_, *compute_ended_at_), now);
    }
  }
}

void CommLedger::add_blocked(double seconds) {
  const std::lock_guard lock(mutex_);
  for (CommTraffic* traffic : {&stats_.last_step, &stats_.total}) {
    traffic->seconds += seconds;
    traffic->exposed_seconds += seconds;
  }
}

void CommLedger::compute_has_ended() {
  const std::lock_guard lock(mutex_);
  if (!compute_ended_at_) {
    compute_ended_at_ = Clock::now();
  }
}

}  // namespace mezzo::distributed
