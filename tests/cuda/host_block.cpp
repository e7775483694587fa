#include "cuda/host_block.h"

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csetjmp>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#elif defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__SANITIZE_THREAD__)
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace mezzo::kernels::MEZZO_CUDA {
namespace {

/// While it lives, ThreadSanitizer ignores the thread, or fiber. The scheduler reads the data that
/// fibers write. No synchronization orders the two, because a kernel's threads must not rely on it.
class Unwatched {
 public:
  Unwatched() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  }
  ~Unwatched() {
#if defined(__SANITIZE_THREAD__)
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
  }
  Unwatched(const Unwatched&) = delete;
  Unwatched& operator=(const Unwatched&) = delete;
};

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MEZZO_ALWAYS_SWAPCONTEXT
#endif

/// A stack, and the place on it at which a fiber goes on. swapcontext asks the kernel for the signal
/// mask every time, which took most of a test's time. So setcontext enters a fiber, and longjmp goes
/// on with it. A sanitizer's longjmp stays on one stack, so sanitizers use swapcontext.
class Context {
 public:
  /// One that runs already.
  Context() = default;

  /// To call `entry` on `stack`, once somebody goes on with it.
  void make(char* stack, size_t bytes, void (*entry)(), unsigned high, unsigned low, int thread) {
    getcontext(&whole_);
    whole_.uc_stack.ss_sp = stack;
    whole_.uc_stack.ss_size = bytes;
    whole_.uc_link = nullptr;
    makecontext(&whole_, entry, 3, high, low, thread);
    was_left_ = false;
  }

  /// Returns when somebody goes on with this one, which runs.
  void go_on_with(Context& other) {
#if defined(MEZZO_ALWAYS_SWAPCONTEXT)
    swapcontext(&whole_, &other.whole_);
#else
    was_left_ = true;
    if (_setjmp(place_) != 0) {
      return;
    }
    if (other.was_left_) {
      _longjmp(other.place_, 1);
    }
    setcontext(&other.whole_);
#endif
  }

 private:
  ucontext_t whole_;
  std::jmp_buf place_;
  bool was_left_ = false;  ///< at `place_`
};

constexpr int kWarpSize = 32;
constexpr size_t kStackBytes = size_t{96} << 10;

enum class State { kNew, kReady, kWaitsForBlock, kWaitsForWarp, kDone };

}  // namespace

/// A thread of the block, and the place in which it waits.
struct Fiber {
  Context context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  State state = State::kReady;
  std::source_location where;
  uint64_t offered = 0;                            ///< to the other threads of its warp
  unsigned block_meetings = 0, warp_meetings = 0;  ///< that it came to
#if defined(__SANITIZE_THREAD__)
  void* tsan = nullptr;
#elif defined(__SANITIZE_ADDRESS__)
  void* fake_stack = nullptr;
#endif
};

class BlockExecution {
 public:
  BlockExecution(int threads, int shared_bytes, const std::function<void(const Block&)>& body);
  ~BlockExecution();
  BlockExecution(const BlockExecution&) = delete;
  BlockExecution& operator=(const BlockExecution&) = delete;

  void run(int64_t index);

  int threads() const { return static_cast<int>(fibers_.size()); }
  int64_t index() const { return index_; }
  unsigned char* shared() const { return shared_.get(); }
  void fail(const char* what) {
    const Unwatched same_for_all;
    failure_ = what;
  }
  Fiber& fiber(int thread) { return fibers_[static_cast<size_t>(thread)]; }

  /// Called by a thread, which goes on when all others of its block or warp wait in the same place.
  void wait(int thread, State state, const std::source_location& where) {
    Fiber& self = fiber(thread);
    self.state = state;
    self.where = where;
    // Two in turn: writes of a thread after a meeting must not reach threads that have yet to leave
    // it.
    void* const meeting = state == State::kWaitsForBlock
                              ? &block_meeting_[self.block_meetings++ % 2]
                              : &warp_meetings_[static_cast<size_t>(thread / kWarpSize)][self.warp_meetings++ % 2];
    release(meeting);
    leave(self);
    acquire(meeting);
  }

 private:
  static void enter(unsigned high, unsigned low, int thread);
  void resume(int thread);
  void leave(Fiber& fiber);
  uint64_t draw() {
    shuffle_ = shuffle_ * 6364136223846793005 + 1442695040888963407;
    return shuffle_ >> 24;
  }
  bool let_go(int first, int count, State state);

  // After a meeting, threads may read the data that others wrote before it.
  static void release([[maybe_unused]] void* meeting) {
#if defined(__SANITIZE_THREAD__)
    __tsan_release(meeting);
#endif
  }
  static void acquire([[maybe_unused]] void* meeting) {
#if defined(__SANITIZE_THREAD__)
    __tsan_acquire(meeting);
#endif
  }

  int64_t index_ = 0;
  std::vector<Fiber> fibers_;
  int shared_bytes_;
  std::unique_ptr<unsigned char[]> shared_;
  const std::function<void(const Block&)>& body_;
  Context scheduler_;
  std::array<char, 2> block_meeting_{};
  std::vector<std::array<char, 2>> warp_meetings_ = std::vector<std::array<char, 2>>(fibers_.size() / kWarpSize);
  const char* failure_ = nullptr;
  bool is_over_ = false;  ///< for all blocks
  uint64_t shuffle_ = 0x9E3779B97F4A7C15;
#if defined(__SANITIZE_THREAD__)
  void* scheduler_tsan_ = nullptr;
#elif defined(__SANITIZE_ADDRESS__)
  void* scheduler_fake_stack_ = nullptr;
  const void* scheduler_stack_ = nullptr;
  size_t scheduler_stack_size_ = 0;
#endif
};

void BlockExecution::enter(unsigned high, unsigned low, int thread) {
  auto* const self = reinterpret_cast<BlockExecution*>(uint64_t{high} << 32 | low);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(nullptr, &self->scheduler_stack_, &self->scheduler_stack_size_);
#endif
  Fiber& fiber = self->fiber(thread);
  while (!self->is_over_) {
    self->body_(Block(self, thread));
    fiber.state = State::kDone;
    self->leave(fiber);
  }
  self->leave(fiber);
}

BlockExecution::BlockExecution(int threads, int shared_bytes, const std::function<void(const Block&)>& body)
    : fibers_(static_cast<size_t>(threads)), shared_bytes_(shared_bytes), body_(body) {
  const auto address = reinterpret_cast<uint64_t>(this);
  for (int thread = 0; thread < threads; ++thread) {
    Fiber& self = fiber(thread);
    self.context.make(self.stack.get(), kStackBytes, reinterpret_cast<void (*)()>(&enter),
                      static_cast<unsigned>(address >> 32), static_cast<unsigned>(address), thread);
#if defined(__SANITIZE_THREAD__)
    self.tsan = __tsan_create_fiber(0);
#endif
  }
}

BlockExecution::~BlockExecution() {
#if defined(__SANITIZE_THREAD__)
  for (Fiber& each : fibers_) {
    __tsan_destroy_fiber(each.tsan);
  }
#elif defined(__SANITIZE_ADDRESS__)
  is_over_ = true;
  for (int thread = 0; thread < threads(); ++thread) {
    if (fiber(thread).state == State::kDone) {  // and not left waiting in vain
      resume(thread);
    }
  }
#endif
}

void BlockExecution::resume(int thread) {
  Fiber& next = fiber(thread);
  [[maybe_unused]] const bool begins = std::exchange(next.state, State::kReady) == State::kNew;
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(next.tsan, begins ? 0 : __tsan_switch_to_fiber_no_sync);
#elif defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(&scheduler_fake_stack_, next.stack.get(), kStackBytes);
#endif
  scheduler_.go_on_with(next.context);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(scheduler_fake_stack_, nullptr, nullptr);
#endif
}

void BlockExecution::leave(Fiber& self) {
#if defined(__SANITIZE_THREAD__)
  // Who runs the fibers comes before all that they do in a block, and after it.
  void* const scheduler = scheduler_tsan_;
  const unsigned flags = self.state == State::kDone ? 0 : __tsan_switch_to_fiber_no_sync;
  release(&self);  // for run(), should nobody go on with it
  __tsan_switch_to_fiber(scheduler, flags);
#elif defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(is_over_ ? nullptr : &self.fake_stack, scheduler_stack_, scheduler_stack_size_);
#endif
  self.context.go_on_with(scheduler_);
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(self.fake_stack, &scheduler_stack_, &scheduler_stack_size_);
#endif
}

/// Lets `count` threads from `first` on go where all of them wait for each
/// other; returns whether it did.
bool BlockExecution::let_go(int first, int count, State state) {
  const auto begin = fibers_.begin() + first;
  if (!std::all_of(begin, begin + count, [&](const Fiber& fiber) {
        const char *file = fiber.where.file_name(), *others = begin->where.file_name();
        return fiber.state == state && fiber.where.line() == begin->where.line() &&
               (file == others || std::string_view(file) == others);
      })) {
    return false;
  }
  std::for_each(begin, begin + count, [](Fiber& fiber) { fiber.state = State::kReady; });
  return true;
}

void BlockExecution::run(int64_t index) {
  index_ = index;
  // Each block gets new memory, so that a read behind its end is found. It is NaN, so that a read
  // before the first write is found.
  shared_.reset(new unsigned char[static_cast<size_t>(std::max(shared_bytes_, 1))]);
  std::memset(shared_.get(), 0xFF, static_cast<size_t>(shared_bytes_));
#if defined(__SANITIZE_THREAD__)
  scheduler_tsan_ = __tsan_get_current_fiber();
#endif
  std::vector<int> order(fibers_.size());
  std::iota(order.begin(), order.end(), 0);
  for (Fiber& each : fibers_) {
    each.state = State::kNew;
    each.block_meetings = each.warp_meetings = 0;
  }
  // The order on a GPU is arbitrary. Some warps go on, in any order. Other warps are left behind
  // for a while, until the former have passed several meetings.
  uint64_t left_behind = 0;
  constexpr int kTurnsBehind = 24;
  int turn = 0;
  for (bool goes_on = true; goes_on; ++turn) {
    goes_on = false;
    left_behind = turn % kTurnsBehind == 0 ? draw() : left_behind;
    for (size_t i = order.size(); i > 1; --i) {
      std::swap(order[i - 1], order[draw() % i]);
    }
    for (const int thread : order) {
      if (const State state = fiber(thread).state; state == State::kNew || state == State::kReady) {
        goes_on = true;
        if ((left_behind >> (thread / kWarpSize) & 1) == 0) {
          resume(thread);
        }
      }
    }
    goes_on |= let_go(0, threads(), State::kWaitsForBlock);
    for (int first = 0; first < threads(); first += kWarpSize) {
      goes_on |= let_go(first, kWarpSize, State::kWaitsForWarp);
    }
  }
  if (failure_ != nullptr) {
    throw std::out_of_range(failure_);
  }
  const auto waits = std::ranges::find_if(fibers_, [](const Fiber& each) { return each.state != State::kDone; });
  if (waits != fibers_.end()) {
    // Nothing resumes the waiting threads: all they did comes before all that follows here.
    for (Fiber& each : fibers_) {
      acquire(&each);
    }
    throw std::logic_error("block " + std::to_string(index) + ": thread " + std::to_string(waits - fibers_.begin()) +
                           " waits at " + waits->where.file_name() + ":" + std::to_string(waits->where.line()) +
                           " for others that are elsewhere or have left");
  }
}

int Block::threads() const { return execution_->threads(); }
int64_t Block::index() const { return execution_->index(); }
unsigned char* Block::shared_memory() const { return execution_->shared(); }

void Block::require(bool holds, const char* what) const {
  if (!holds) {
    execution_->fail(what);
  }
}

void Block::sync(std::source_location where) const { execution_->wait(thread_, State::kWaitsForBlock, where); }

void Block::sync_warp(std::source_location where) const { execution_->wait(thread_, State::kWaitsForWarp, where); }

uint64_t Block::exchange(uint64_t mine, int mask, const std::source_location& where) const {
  offer(mine, where);
  const uint64_t other = offered_by(thread_ % kWarpSize ^ mask);
  execution_->wait(thread_, State::kWaitsForWarp, where);  // before the next offer
  return other;
}

void Block::offer(uint64_t mine, const std::source_location& where) const {
  execution_->fiber(thread_).offered = mine;
  execution_->wait(thread_, State::kWaitsForWarp, where);
}

uint64_t Block::offered_by(int lane) const { return execution_->fiber(thread_ / kWarpSize * kWarpSize + lane).offered; }

void execute(int64_t blocks, int threads, int shared_bytes, const std::function<void(const Block&)>& thread) {
  if (blocks < 1 || threads < kWarpSize || threads % kWarpSize != 0 || threads > 1024 ||
      shared_bytes > device_limits().shared_bytes) {
    throw std::logic_error("a grid of " + std::to_string(blocks) + " blocks of " + std::to_string(threads) +
                           " threads and " + std::to_string(shared_bytes) +
                           " bytes of shared memory cannot be launched");
  }
  const Unwatched bookkeeping;
  BlockExecution execution(threads, shared_bytes, thread);
  for (int64_t block = 0; block < blocks; ++block) {
    execution.run(block);
  }
}

namespace {
LaunchHook launch_hook;
std::atomic<int64_t> launches = 0;
constexpr DeviceLimits kH100{.multiprocessors = 132, .shared_bytes = 227 * 1024};
DeviceLimits limits = kH100;
}  // namespace

void set_launch_hook(LaunchHook hook) { launch_hook = std::move(hook); }
int64_t num_launches() { return launches; }

WithDeviceLimits::WithDeviceLimits(const DeviceLimits& given) { limits = given; }
WithDeviceLimits::~WithDeviceLimits() { limits = kH100; }
DeviceLimits device_limits() { return limits; }

void submit(void* stream, Launched launched) {
  ++launches;
  launch_hook ? launch_hook(stream, std::move(launched)) : launched.run();
}

}  // namespace mezzo::kernels::MEZZO_CUDA
