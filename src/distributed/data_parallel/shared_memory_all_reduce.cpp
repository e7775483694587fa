#include "mezzo/distributed/data_parallel/shared_memory_all_reduce.h"

#include <ATen/core/jit_type.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <climits>
#include <cstring>
#include <random>

#include "distributed/data_parallel/sum.h"
#include "kernels/cpu/simd/element_kernels.h"
#include "kernels/cpu/tensor_spans.h"
#include "kernels/dtypes.h"
#include "system/unique_fd.h"

namespace mezzo::distributed {
namespace {

using Clock = std::chrono::steady_clock;

/// Two chunks of each rank and two of results fit the cache together, and a chunk is long
/// enough to make waiting cheap.
constexpr int64_t kChunk = 128 * 1024;  // floats
constexpr int kSpins = 2000;            // some ten microseconds
constexpr auto kNap = std::chrono::milliseconds(100);

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void futex_wake(std::atomic<uint32_t>& word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

/// Returns when `word` is no longer `value`, or after a nap, or for no reason.
void futex_wait(std::atomic<uint32_t>& word, uint32_t value) {
  const timespec nap{0, std::chrono::nanoseconds(kNap).count()};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT, value, &nap, nullptr, 0);
}

bool has_ended(int process) {
  pollfd ended{process, POLLIN, 0};
  return process >= 0 && ::poll(&ended, 1, 0) == 1;
}

/// Memory to share that no file system knows, so that nothing stays behind however its users end.
UniqueFd make_memory(const std::string& name, size_t bytes) {
  UniqueFd file(::memfd_create(name.c_str(), MFD_CLOEXEC));
  // Space is taken now: full memory would otherwise end the process at the first write.
  if (::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)) != 0) {
    file.reset();
  }
  return file;
}

/// The memory that another process has open as `link`, /proc/PID/fd/FD. Its random name shows that it is the process
/// that was meant. In another container, or on another host, the same numbers mean another process.
UniqueFd open_memory(const std::string& link, const std::string& name) {
  std::array<char, 128> target{};
  const bool is_it = ::readlink(link.c_str(), target.data(), target.size() - 1) > 0 &&
                     target.data() == "/memfd:" + name + " (deleted)";
  return UniqueFd(is_it ? ::open(link.c_str(), O_RDWR | O_CLOEXEC) : -1);
}

/// Whether `round` has been reached; counts may wrap around.
bool reached(uint32_t count, uint32_t round) { return static_cast<int32_t>(count - round) >= 0; }

}  // namespace

/// Counters, then chunks. New memory of the system is zero.
struct SharedMemoryAllReduce::Region {
  struct alignas(64) Counter {
    std::atomic<uint32_t> rounds;  // chunks that the rank has put into its slot
  };
  static_assert(std::atomic<uint32_t>::is_always_lock_free);

  static size_t bytes(int ranks) { return ranks * sizeof(Counter) + 2 * (ranks + 1) * kChunk * sizeof(float); }
  Counter& counter(int rank) { return reinterpret_cast<Counter*>(this)[rank]; }
  float* chunk(int ranks, int64_t index) {
    return reinterpret_cast<float*>(reinterpret_cast<Counter*>(this) + ranks) + index * kChunk;
  }

  /// nullptr if it cannot be had, as for a file that is not open.
  static Region* map(const UniqueFd& file, int ranks) {
    void* mapped = ::mmap(nullptr, bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    return mapped == MAP_FAILED ? nullptr : static_cast<Region*>(mapped);
  }
};

std::unique_ptr<SharedMemoryAllReduce> SharedMemoryAllReduce::create(ProcessGroup& group) {
  if (group.any(group.environment().local_world_size != group.size())) {
    return nullptr;
  }
  const auto random_name = [] {
    return fmt::format("mezzo-{:08x}{:08x}", std::random_device()(), std::random_device()());
  };
  const bool is_maker = group.rank() == 0;
  const std::string name = group.all_gather(is_maker ? random_name() : "").front();
  UniqueFd file = is_maker ? make_memory(name, Region::bytes(group.size())) : UniqueFd();
  const auto links = group.all_gather(fmt::format("/proc/{}/fd/{}", getpid(), file.get()));
  if (!is_maker) {
    file = open_memory(links.front(), name);
  }
  Region* region = Region::map(file, group.size());
  const bool all_have_it = !group.any(region == nullptr);  // the maker's file stays open until here
  std::unique_ptr<SharedMemoryAllReduce> made(region == nullptr ? nullptr : new SharedMemoryAllReduce(group, region));
  const auto pids = group.all_gather(std::to_string(getpid()));
  bool sees_all = all_have_it;
  for (int other = 0; other < group.size() && sees_all; ++other) {
    const bool is_this = other == group.rank();
    made->processes_.push_back(is_this ? -1 : static_cast<int>(::syscall(SYS_pidfd_open, std::stoi(pids[other]), 0)));
    sees_all = is_this || made->processes_.back() >= 0;
  }
  if (group.any(!sees_all)) {
    made.reset();
  }
  return made;
}

SharedMemoryAllReduce::SharedMemoryAllReduce(ProcessGroup& group, Region* region)
    : rank_(group.rank()), size_(group.size()), timeout_(group.options().timeout()), region_(region) {}

SharedMemoryAllReduce::~SharedMemoryAllReduce() {
  for (const int process : processes_) {
    if (process >= 0) {
      ::close(process);
    }
  }
  ::munmap(region_, Region::bytes(size_));
}

float* SharedMemoryAllReduce::slot(int rank, uint32_t round) const {
  return region_->chunk(size_, 2 * rank + round % 2);
}

float* SharedMemoryAllReduce::result(uint32_t round) const { return region_->chunk(size_, 2 * size_ + round % 2); }

void SharedMemoryAllReduce::sum(at::Tensor& tensor) {
  TORCH_CHECK_VALUE(tensor.is_cpu() && tensor.is_contiguous(), "SharedMemoryAllReduce: takes dense tensors on the CPU");
  const auto dtype = tensor.scalar_type();
  TORCH_CHECK_VALUE(has_kernel(dtype), "SharedMemoryAllReduce: takes float32, float16 and bfloat16, not ", dtype);
  // One wait a chunk. Once all have put chunk k into their slots, all have also summed chunk k - 1. So nobody still
  // reads the values that those slots held two chunks ago.
  const auto& loops = kernels::cpu::element_kernels();
  const int64_t numel = tensor.numel();
  const int64_t chunks = ceil_div(numel, kChunk);
  const auto length = [&](int64_t chunk) { return std::min(kChunk, numel - chunk * kChunk); };
  const auto copy_out = [&](int64_t chunk, uint32_t round) {
    loops.from_float(result(round), kernels::cpu::write_span(tensor, chunk * kChunk), length(chunk));
  };
  std::vector<const float*> slots(size_);
  for (int64_t chunk = 0; chunk < chunks; ++chunk) {
    const uint32_t round = round_++;
    loops.to_float(kernels::cpu::read_span(tensor, chunk * kChunk), slot(rank_, round), length(chunk));
    wait_for_all(round_);
    if (chunk > 0) {
      copy_out(chunk - 1, round - 1);
    }
    const int64_t share = ceil_div(length(chunk), size_), begin = std::min(rank_ * share, length(chunk));
    for (int other = 0; other < size_; ++other) {
      slots[other] = slot(other, round) + begin;
    }
    sum_of(slots, std::min(share, length(chunk) - begin), result(round) + begin);
  }
  if (chunks > 0) {
    const uint32_t last = round_++;  // a round without a chunk: the others have summed the last one
    wait_for_all(round_);
    copy_out(chunks - 1, last - 1);
  }
}

CommHook shared_memory_hook(std::unique_ptr<SharedMemoryAllReduce> all_reduce) {
  using Future = c10::intrusive_ptr<c10::ivalue::Future>;
  struct Pending {
    at::Tensor buffer;
    Future future;
  };
  const std::shared_ptr<SharedMemoryAllReduce> shared = std::move(all_reduce);
  const auto pending = std::make_shared<std::vector<Pending>>();
  return [shared, pending](const c10::intrusive_ptr<c10d::ProcessGroup>&, c10d::GradBucket& bucket) {
    auto future = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
    if (bucket.getIndex() == 0) {
      pending->clear();  // a backward that threw left buckets; other ranks may have come further in it
    }
    pending->push_back({bucket.getBuffer(), future});
    if (bucket.isLast()) {
      for (auto& [buffer, promised] : std::exchange(*pending, {})) {
        shared->sum(buffer);
        promised->markCompleted(buffer);
      }
    }
    return future;
  };
}

/// Says that this rank has come to `round`, and waits until all have.
void SharedMemoryAllReduce::wait_for_all(uint32_t round) {
  auto& mine = region_->counter(rank_).rounds;
  mine.store(round, std::memory_order_release);
  futex_wake(mine);
  for (int other = 0; other < size_; ++other) {
    wait_for(other, round);
  }
}

void SharedMemoryAllReduce::wait_for(int rank, uint32_t round) {
  auto& rounds = region_->counter(rank).rounds;
  for (int spin = 0; spin < kSpins; ++spin) {
    if (reached(rounds.load(std::memory_order_acquire), round)) {
      return;
    }
  }
  const auto deadline = Clock::now() + timeout_;
  for (uint32_t count = rounds.load(std::memory_order_acquire); !reached(count, round);
       count = rounds.load(std::memory_order_acquire)) {
    TORCH_CHECK_WITH(DistBackendError, !has_ended(processes_[rank]), "all-reduce through shared memory: rank ", rank,
                     " has ended");
    TORCH_CHECK_WITH(DistBackendError, Clock::now() < deadline, "all-reduce through shared memory: rank ", rank,
                     " did not come within the timeout");
    futex_wait(rounds, count);
  }
}

}  // namespace mezzo::distributed
