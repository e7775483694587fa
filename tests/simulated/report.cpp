#include "simulated/report.h"

#include <c10/util/Exception.h>

#include <mutex>
#include <utility>

#include "simulated/graph.h"

namespace mezzo::simulated {
namespace {

struct Notes {
  std::mutex mutex;
  std::vector<std::string> host_syncs, faults;
  int64_t kernels = 0, replays = 0;
  size_t faults_thrown = 0;
  std::exception_ptr error;
};

Notes& notes() {
  static auto* const all = new Notes;  // threads of streams outlive static storage
  return *all;
}

std::vector<std::string> from(const std::vector<std::string>& all, size_t first) {
  return {all.begin() + static_cast<std::ptrdiff_t>(first), all.end()};
}

}  // namespace

void note_host_sync(const std::string& what, const Queue* queue) {
  forbid_in_recordings(what + " waits for the device", queue);
  const std::lock_guard lock(notes().mutex);
  notes().host_syncs.push_back(what);
}

void note_kernel() {
  const std::lock_guard lock(notes().mutex);
  ++notes().kernels;
}

void note_replay() {
  const std::lock_guard lock(notes().mutex);
  ++notes().replays;
}

void note_fault(const std::string& fault) {
  const std::lock_guard lock(notes().mutex);
  notes().faults.push_back(fault);
}

void note_error(std::exception_ptr error) {
  const std::lock_guard lock(notes().mutex);
  if (!notes().error) {
    notes().error = std::move(error);
  }
}

void throw_noted() {
  std::exception_ptr error;
  std::string fault;
  {
    const std::lock_guard lock(notes().mutex);
    error = std::exchange(notes().error, nullptr);
    if (notes().faults_thrown < notes().faults.size()) {
      fault = notes().faults[notes().faults_thrown];
      notes().faults_thrown = notes().faults.size();
    }
  }
  if (error) {
    std::rethrow_exception(error);
  }
  TORCH_CHECK(fault.empty(), "simulated device: ", fault);
}

Watch::Watch() {
  const std::lock_guard lock(notes().mutex);
  first_sync_ = notes().host_syncs.size();
  first_fault_ = notes().faults.size();
  first_kernel_ = notes().kernels;
  first_replay_ = notes().replays;
}

std::vector<std::string> Watch::host_syncs() const {
  const std::lock_guard lock(notes().mutex);
  return from(notes().host_syncs, first_sync_);
}

std::vector<std::string> Watch::faults() const {
  const std::lock_guard lock(notes().mutex);
  return from(notes().faults, first_fault_);
}

int64_t Watch::kernels() const {
  const std::lock_guard lock(notes().mutex);
  return notes().kernels - first_kernel_;
}

int64_t Watch::replays() const {
  const std::lock_guard lock(notes().mutex);
  return notes().replays - first_replay_;
}

}  // namespace mezzo::simulated
