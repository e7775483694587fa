#include "mezzo/parallel/data_parallel.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>

#include <set>

#include "mezzo/amp/autocast_state.h"
#include "parallel/replicas.h"
#include "parallel/worker_threads.h"

namespace mezzo::detail {
namespace {

/// As tensors on it name it: with the index of the current device where none
/// was given; CPUs have none.
c10::Device as_tensors_name(const c10::Device& device) {
  if (device.is_cpu()) {
    return c10::Device(c10::kCPU);
  }
  const bool can_ask = !device.has_index() && c10::impl::hasDeviceGuardImpl(device.type());
  return can_ask ? c10::impl::VirtualGuardImpl(device.type()).getDevice() : device;
}

DataParallelOptions checked(DataParallelOptions options) {
  if (options.devices().empty()) {
    for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
      options.devices().emplace_back(c10::kCUDA, i);
    }
  }
  TORCH_CHECK_VALUE(!options.devices().empty(), "DataParallel: there is no CUDA device; name the devices to use");
  TORCH_CHECK_VALUE(options.dim() >= 0, "DataParallel: dim must not be negative, got ", options.dim());
  for (c10::Device& device : options.devices()) {
    device = as_tensors_name(device);
  }
  options.output_device(as_tensors_name(options.output_device().value_or(options.devices()[0])));
  return options;
}

/// The calling thread's current streams on every device of the types that `devices` are of.
std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices) {
  std::set<c10::DeviceType> types;
  std::vector<c10::Stream> streams;
  for (const auto& device : devices) {
    if (!types.insert(device.type()).second) {
      continue;
    }
    const c10::impl::VirtualGuardImpl guard(device.type());
    for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) {
      streams.push_back(guard.getStream({device.type(), i}));
    }
  }
  return streams;
}

/// Makes streams the current ones of this thread while it lives: not only its own device's, since a
/// copy from another device is put in order with what that device's current stream does.
class StreamsGuard {
 public:
  explicit StreamsGuard(const std::vector<c10::Stream>& streams) {
    for (const auto& stream : streams) {
      previous_.push_back(c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream));
    }
  }
  ~StreamsGuard() {
    for (const auto& stream : previous_) {
      c10::impl::VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
    }
  }
  StreamsGuard(const StreamsGuard&) = delete;
  StreamsGuard& operator=(const StreamsGuard&) = delete;

 private:
  std::vector<c10::Stream> previous_;
};

/// Regions that a replica opens and closes are none of the outermost, so none clears the
/// cache of cast weights while others use it: whether a weight is cast once or twice must
/// not be a matter of timing.
class OneRegionForAll {
 public:
  OneRegionForAll() { at::autocast::increment_nesting(); }
  ~OneRegionForAll() {
    if (at::autocast::decrement_nesting() == 0) {
      at::autocast::clear_cache();
    }
  }
  OneRegionForAll(const OneRegionForAll&) = delete;
  OneRegionForAll& operator=(const OneRegionForAll&) = delete;
};

[[noreturn]] void rethrow(const std::exception_ptr& error, size_t replica, const c10::Device& device) {
  const auto where = c10::str("in replica ", replica, " on ", device);
  try {
    std::rethrow_exception(error);
  } catch (c10::Error& mine) {
    mine.add_context(where);
    throw;
  } catch (const std::exception& other) {
    TORCH_CHECK(false, other.what(), " (", where, ")");
  }
}

}  // namespace

DataParallelBase::DataParallelBase(const std::shared_ptr<torch::nn::Module>& module,
                                   DataParallelOptions options,
                                   Replicate replicate)
    : options_(checked(std::move(options))),
      replicas_(std::make_unique<Replicas>(module, options_.devices(), std::move(replicate))),
      threads_(std::make_unique<WorkerThreads>()) {}

DataParallelBase::~DataParallelBase() = default;

void DataParallelBase::replicate() { replicas_->clear(); }

BatchDivision DataParallelBase::divide(const std::vector<at::Tensor>& tensors) const {
  return {tensors, options_.devices(), options_.dim()};
}

std::vector<std::shared_ptr<torch::nn::Module>> DataParallelBase::take_replicas(size_t count) {
  return replicas_->take(count);
}

void DataParallelBase::run(size_t count, const std::function<void(size_t)>& work) {
  const OneRegionForAll one_region;
  const auto autocast = AutocastState::current();
  const at::ThreadLocalState thread_state;
  const auto streams = current_streams(options_.devices());
  const auto errors = threads_->run(count, [&](size_t i) {
    const StreamsGuard same_streams(streams);
    const c10::DeviceGuard on_device(options_.devices()[i]);
    if (i == 0) {
      return work(i);  // on the thread that called
    }
    const at::ThreadLocalStateGuard same_state(thread_state);
    const AutocastStateGuard same_autocast(autocast);
    work(i);
  });
  for (size_t i = 0; i < count; ++i) {
    if (errors[i]) {
      rethrow(errors[i], i, options_.devices()[i]);
    }
  }
}

void throw_not_cloneable(const torch::nn::Module& module, const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  TORCH_CHECK_VALUE(false, "DataParallel: cannot clone ", module.name(),
                    "; derive it from torch::nn::Cloneable, or pass a function that makes replicas (",
                    c10_error != nullptr ? c10_error->what_without_backtrace() : error.what(), ")");
}

}  // namespace mezzo::detail
