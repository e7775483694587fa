#include "mezzo/parallel/data_parallel.h"

#include <ATen/ThreadLocalState.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/stack.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/core/Stream.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/cuda.h>

#include <algorithm>
#include <set>
#include <thread>

#include "amp/random_state_guard.h"
#include "mezzo/amp/autocast_state.h"

namespace mezzo::detail {
namespace {

using c10::impl::VirtualGuardImpl;

/// As tensors on it name it: with the index of the current device where none
/// was given; CPUs have none.
c10::Device as_tensors_name(const c10::Device& device) {
  if (device.is_cpu()) {
    return c10::Device(c10::kCPU);
  }
  const bool can_ask = !device.has_index() && c10::impl::hasDeviceGuardImpl(device.type());
  return can_ask ? VirtualGuardImpl(device.type()).getDevice() : device;
}

DataParallelOptions checked(DataParallelOptions options) {
  if (options.devices().empty()) {
    for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
      options.devices().emplace_back(c10::kCUDA, i);
    }
  }
  TORCH_CHECK_VALUE(!options.devices().empty(), "DataParallel: there is no CUDA device; name the devices to use");
  TORCH_CHECK_VALUE(options.dim() >= 0, "DataParallel: dim must not be negative, got ", options.dim());
  std::ranges::transform(options.devices(), options.devices().begin(), as_tensors_name);
  options.output_device(as_tensors_name(options.output_device().value_or(options.devices()[0])));
  return options;
}

/// Whether no graph leads to its parameters, through which somebody might run backward.
bool is_free(const std::shared_ptr<torch::nn::Module>& replica) {
  return std::ranges::all_of(replica->parameters(), [](const at::Tensor& parameter) {
    return parameter.grad_fn() == nullptr || parameter.grad_fn().use_count() == 1;
  });
}

/// Makes `copy` a function of `parameter`, as far as gradients are asked for now.
void follow(const at::Tensor& copy, const at::Tensor& parameter, c10::Device device) {
  const auto source = parameter.device() == device ? parameter.view_as(parameter) : parameter.to(device);
  copy.set_data(source.detach());
  const bool has_history = source.grad_fn() != nullptr;
  torch::autograd::impl::set_gradient_edge(
      copy, has_history ? torch::autograd::Edge(source.grad_fn(), source.output_nr()) : torch::autograd::Edge());
  if (!has_history) {
    copy.set_requires_grad(parameter.requires_grad());
  }
}

/// Gives a replica the module's training modes, parameters and buffers.
void refresh(const torch::nn::Module& module, torch::nn::Module& replica, c10::Device device) {
  const auto modules = module.modules(/*include_self=*/false), copies = replica.modules(/*include_self=*/false);
  replica.train(module.is_training());
  for (size_t i = 0; i < modules.size(); ++i) {  // parents first: each sets its children too
    copies[i]->train(modules[i]->is_training());
  }
  const auto parameters = module.parameters(), copied_parameters = replica.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    follow(copied_parameters[i], parameters[i], device);
  }
  const at::NoGradGuard no_grad;
  const auto buffers = module.buffers(), copied_buffers = replica.buffers();
  for (size_t i = 0; i < buffers.size(); ++i) {
    copied_buffers[i].set_data(buffers[i].to(device, buffers[i].scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
}

/// The calling thread's current streams on every device of the types in `devices`. A copy between devices is put in
/// order with the streams of both.
std::vector<c10::Stream> current_streams(const std::vector<c10::Device>& devices) {
  std::set<c10::DeviceType> types;
  std::vector<c10::Stream> streams;
  for (const auto& device : devices) {
    if (types.insert(device.type()).second) {
      const VirtualGuardImpl guard(device.type());
      for (c10::DeviceIndex i = 0; i < guard.deviceCount(); ++i) {
        streams.push_back(guard.getStream({device.type(), i}));
      }
    }
  }
  return streams;
}

/// Regions that a replica opens and closes are not outermost, so none clears the cache of cast weights while others use
/// it. Whether a weight is cast once or twice must not depend on timing.
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

DataParallelBase::DataParallelBase(std::shared_ptr<torch::nn::Module> module,
                                   DataParallelOptions options,
                                   MakeReplica make_replica)
    : module_(std::move(module)),
      options_(checked(std::move(options))),
      make_replica_(std::move(make_replica)),
      made_(options_.devices().size()) {
  const c10::Device first = options_.devices()[0];
  const auto check = [&](const char* kind, const auto& tensors) {
    for (const auto& item : tensors) {
      TORCH_CHECK_VALUE(item.value().device() == first, "DataParallel: ", kind, " ", item.key(), " is on ",
                        item.value().device(), ", but the first device is ", first,
                        "; move the module there, or name another device first");
    }
  };
  check("parameter", module_->named_parameters());
  check("buffer", module_->named_buffers());
}

std::vector<Tensors> DataParallelBase::scatter(const Tensors& tensors) const {
  const auto& devices = options_.devices();
  std::optional<int64_t> rows;
  std::vector<Tensors> parts;
  for (size_t index = 0; index < tensors.size(); ++index) {
    const at::Tensor& tensor = tensors[index];
    if (!tensor.defined()) {
      continue;
    }
    TORCH_CHECK_VALUE(tensor.dim() > options_.dim(), "DataParallel: an argument of shape ", tensor.sizes(),
                      " cannot be divided along dimension ", options_.dim(),
                      "; pass a number, or a tensor with a batch dimension");
    const int64_t size = tensor.size(options_.dim());
    TORCH_CHECK_VALUE(rows.value_or(size) == size, "DataParallel: the arguments are batches of different sizes, ",
                      rows.value_or(0), " and ", size, " along dimension ", options_.dim());
    rows = size;
    const auto chunks = tensor.chunk(static_cast<int64_t>(devices.size()), options_.dim());
    parts.resize(chunks.size(), Tensors(tensors.size()));
    for (size_t i = 0; i < chunks.size(); ++i) {
      parts[i][index] = chunks[i].to(devices[i]);
    }
  }
  TORCH_CHECK_VALUE(rows, "DataParallel: no argument is a tensor, so there is nothing to divide between the devices");
  return parts;
}

DataParallelBase::Modules DataParallelBase::replicate(size_t count) {
  Modules replicas{module_};
  for (size_t i = 1; i < count; ++i) {
    const c10::Device device = options_.devices()[i];
    auto found = std::ranges::find_if(made_[i], is_free);
    if (found == made_[i].end()) {
      found = made_[i].insert(made_[i].end(), make(device));
    }
    refresh(*module_, **found, device);
    replicas.push_back(*found);
  }
  return replicas;
}

std::shared_ptr<torch::nn::Module> DataParallelBase::make(c10::Device device) const {
  const at::NoGradGuard no_grad;
  // A copy draws initial weights, which are then overwritten; the program's random
  // numbers are to stay the same.
  const RandomStateGuard random_state(device.type());
  auto replica = make_replica_(device);
  TORCH_CHECK_VALUE(replica != nullptr && replica != module_, "DataParallel: a replica of ", module_->name(),
                    " must be another module of its type");
  TORCH_CHECK_VALUE(module_->named_parameters().keys() == replica->named_parameters().keys() &&
                        module_->named_buffers().keys() == replica->named_buffers().keys() &&
                        module_->modules().size() == replica->modules().size(),
                    "DataParallel: a replica of ", module_->name(), " has other parameters, buffers or submodules");
  return replica;
}

void DataParallelBase::parallel_apply(size_t count, const std::function<void(size_t)>& work) const {
  const auto& devices = options_.devices();
  const OneRegionForAll one_region;
  const auto autocast = AutocastState::current();
  const at::ThreadLocalState thread_state;
  const auto streams = current_streams(devices);
  std::vector<std::exception_ptr> errors(count);
  const auto run = [&](size_t i) {
    try {
      const c10::DeviceGuard on_device(devices[i]);
      work(i);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  std::vector<std::jthread> threads;
  for (size_t i = 1; i < count; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (const c10::Stream& stream : streams) {
          VirtualGuardImpl(stream.device_type()).exchangeStream(stream);
        }
        const at::ThreadLocalStateGuard same_state(thread_state);
        const AutocastStateGuard same_autocast(autocast);
        run(i);
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  run(0);
  threads.clear();  // joins them
  for (size_t i = 0; i < count; ++i) {
    if (errors[i]) {
      rethrow(errors[i], i, devices[i]);
    }
  }
}

Tensors DataParallelBase::gather(const std::vector<Tensors>& parts) const {
  for (size_t i = 1; i < parts.size(); ++i) {
    TORCH_CHECK(parts[i].size() == parts[0].size(), "DataParallel: the output of replica 0 has ", parts[0].size(),
                " tensors, the output of replica ", i, " has ", parts[i].size(), "; they cannot be joined");
  }
  Tensors joined;
  for (size_t index = 0; index < parts[0].size(); ++index) {
    Tensors tensors;
    for (const Tensors& part : parts) {
      if (part[index].defined()) {
        tensors.push_back(part[index].to(*options_.output_device()));
      }
    }
    TORCH_CHECK(tensors.empty() || tensors.size() == parts.size(), "DataParallel: tensor ", index,
                " of the output is undefined in some replicas only; they cannot be joined");
    joined.push_back(tensors.empty()         ? at::Tensor()
                     : tensors[0].dim() == 0 ? at::stack(tensors)
                                             : at::cat(tensors, options_.dim()));
  }
  return joined;
}

void throw_not_cloneable(const torch::nn::Module& module, const std::exception& error) {
  const auto* c10_error = dynamic_cast<const c10::Error*>(&error);
  TORCH_CHECK_VALUE(false, "DataParallel: cannot clone ", module.name(),
                    "; derive it from torch::nn::Cloneable, or pass a function that makes replicas (",
                    c10_error != nullptr ? c10_error->what_without_backtrace() : error.what(), ")");
}

}  // namespace mezzo::detail
