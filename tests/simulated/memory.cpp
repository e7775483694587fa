#include "simulated/memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <iterator>
#include <map>

#include "simulated/counts.h"
#include "simulated/graph.h"

namespace mezzo::simulated {
namespace {

constexpr int kPoison = 0xFF;
constexpr size_t kPage = 4096;

/// A range of addresses, given out once each.
class Arena {
 public:
  Arena() {
    void* found = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    TORCH_CHECK(found != MAP_FAILED, "simulated device: cannot reserve addresses: ", std::strerror(errno));
    begin_ = static_cast<char*>(found);
  }

  bool contains(const void* address) const { return address >= begin_ && address < begin_ + kBytes; }

  /// Pages that may not be touched yet; one more lies behind them that never may.
  void* take(size_t bytes) {
    const size_t offset = next_.fetch_add(pages(bytes) + kPage);
    TORCH_CHECK(offset + bytes < kBytes, "simulated device: out of memory");
    return begin_ + offset;
  }

  static size_t pages(size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

 private:
  static constexpr size_t kBytes = size_t{1} << 38;
  char* begin_;
  std::atomic<size_t> next_ = 0;
};

/// Of the devices, and of pinned memory.
std::array<Arena, kDevices + 1>& arenas() {
  static auto* const made = new std::array<Arena, kDevices + 1>;
  return *made;
}
Arena& arena_of(c10::DeviceIndex device) { return arenas()[static_cast<size_t>(device)]; }
Arena& pinned_arena() { return arenas().back(); }

void protect(void* data, size_t bytes, int protection) {
  TORCH_CHECK(mprotect(data, Arena::pages(bytes), protection) == 0,
              "simulated device: mprotect: ", std::strerror(errno));
}

void open_poisoned(void* data, size_t bytes) {
  protect(data, bytes, PROT_READ | PROT_WRITE);
  std::memset(data, kPoison, bytes);
}

void give_back(void* data, size_t bytes) {
  madvise(data, Arena::pages(bytes), MADV_DONTNEED);
  mprotect(data, Arena::pages(bytes), PROT_NONE);
}

struct sigaction previous_action;

void write_text(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) {
    return;
  }
}

/// Says what happened; the access is then made again, and ends as it would have without this.
void explain(int signal, siginfo_t* info, void* /*context*/) {
  if (pinned_arena().contains(info->si_addr)) {
    write_text("simulated device: pinned memory was used after it was freed\n");
  } else if (device_of(info->si_addr).type() == kType) {
    write_text(
        "simulated device: its memory was touched by the host, or by a kernel that was not given it; copy the tensor "
        "to the CPU\n");
  }
  sigaction(signal, &previous_action, nullptr);
}

void explain_faults() {
  struct sigaction action = {};
  action.sa_sigaction = &explain;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, &previous_action);
}

/// All there are.
struct Blocks {
  std::mutex mutex;
  std::map<const char*, std::weak_ptr<Block>> by_address;
};

Blocks& all_blocks() {
  static auto* const made = new Blocks;  // threads of streams outlive static storage
  return *made;
}

/// The context of a device tensor's storage.
struct Holder {
  std::shared_ptr<Block> block;
  Queue* queue;  // whose memory it is
};

void free_block(void* context) {
  const std::unique_ptr<Holder> holder(static_cast<Holder*>(context));
  const std::lock_guard order(order_mutex());
  Clock later = holder->queue->clock();
  join(later, host_clock());
  holder->block->is_freed = true;
  holder->block->accesses.check_freed(later, holder->block->recorded_streams);
}

struct DeviceAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(kType, current_device());
    if (bytes == 0) {
      return {nullptr, device};
    }
    auto holder =
        std::make_unique<Holder>(std::make_shared<Block>(device, bytes), &Queue::of(current_stream(device.index())));
    {
      const std::lock_guard lock(all_blocks().mutex);
      all_blocks().by_address[static_cast<const char*>(holder->block->data())] = holder->block;
    }
    if (Recording* recording = recording_of(*holder->queue)) {
      holder->block->is_of_graph = true;
      recording->pool->blocks.push_back(holder->block);
    }
    void* const data = holder->block->data();
    return {data, holder.release(), &free_block, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "simulated device: its memory is copied by kernels alone");
  }
};

struct Pinned {
  void* data;
  size_t bytes;
};

void free_pinned(void* context) {
  const std::unique_ptr<Pinned> pinned(static_cast<Pinned*>(context));
  give_back(pinned->data, pinned->bytes);
}

struct PinnedAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    auto pinned = std::make_unique<Pinned>(Pinned{pinned_arena().take(bytes), bytes});
    void* const data = pinned->data;
    open_poisoned(data, bytes);
    return {data, pinned.release(), &free_pinned, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

}  // namespace

Block::Block(c10::Device device, size_t bytes)
    : device_(device), data_(arena_of(device.index()).take(bytes)), bytes_(bytes) {
  static std::once_flag once;
  std::call_once(once, explain_faults);
  if (computes()) {  // else nobody looks at it, and it takes no memory
    open_poisoned(data_, bytes_);
    protect(data_, bytes_, PROT_NONE);
  }
}

Block::~Block() {
  give_back(data_, bytes_);
  const std::lock_guard lock(all_blocks().mutex);
  all_blocks().by_address.erase(static_cast<const char*>(data_));
}

std::shared_ptr<Block> Block::of(const c10::DataPtr& data) {
  return data.get_deleter() == &free_block ? static_cast<Holder*>(data.get_context())->block : nullptr;
}

std::shared_ptr<Block> Block::holding(const void* address) {
  const std::lock_guard lock(all_blocks().mutex);
  const auto& blocks = all_blocks().by_address;
  const auto behind = blocks.upper_bound(static_cast<const char*>(address));
  if (behind == blocks.begin()) {
    return nullptr;
  }
  const auto& [begin, weak] = *std::prev(behind);
  auto block = weak.lock();
  return block != nullptr && address < begin + block->bytes_ ? block : nullptr;
}

void Block::open(bool writes) { change(writes, 1); }
void Block::close(bool writes) { change(writes, -1); }

void Block::change(bool writes, int by) {
  const std::lock_guard lock(mutex_);
  const auto protection = [&] { return writers_ > 0 ? PROT_READ | PROT_WRITE : readers_ > 0 ? PROT_READ : PROT_NONE; };
  const int before = protection();
  (writes ? writers_ : readers_) += by;
  if (protection() != before) {
    protect(data_, bytes_, protection());
  }
}

void Block::poison() { std::memset(data_, kPoison, bytes_); }

c10::Allocator* device_allocator() {
  static auto* const made = new DeviceAllocator;
  return made;
}

c10::Allocator* pinned_allocator() {
  static auto* const made = new PinnedAllocator;
  return made;
}

bool is_pinned(const void* data) { return pinned_arena().contains(data); }

c10::Device device_of(const void* data) {
  for (c10::DeviceIndex i = 0; i < kDevices; ++i) {
    if (arena_of(i).contains(data)) {
      return {kType, i};
    }
  }
  return c10::kCPU;
}

void poison(const at::Tensor& tensor) {
  if (tensor.is_non_overlapping_and_dense()) {
    std::memset(tensor.mutable_data_ptr(), kPoison, tensor.nbytes());
  }
}

}  // namespace mezzo::simulated
