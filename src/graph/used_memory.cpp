#include "graph/used_memory.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <mutex>
#include <unordered_map>
#include <utility>

#include "amp/recorded_inputs.h"
#include "amp/thread_observer.h"

namespace mezzo {
namespace {

/// Calls `visit` for each tensor in `value` that has memory.
template <class Visit>
void visit_memory(const c10::IValue& value, const Visit& visit) {
  value.visit([&](const c10::IValue& part) {
    if (part.isTensor()) {
      const at::Tensor tensor = part.toTensor();
      if (tensor.defined() && tensor.has_storage() && !tensor.is_meta() && tensor.storage().data() != nullptr) {
        visit(tensor);
      }
    }
    return false;
  });
}

thread_local int operators_under_way = 0;  // of this thread, each within the one before

}  // namespace

bool UsedMemory::has_moved(const Storage& storage) {
  const auto alive = storage.storage.lock();
  return !alive || alive->data() != storage.data;
}

bool UsedMemory::has_moved(const Tensor& tensor) {
  const auto alive = tensor.tensor.lock();  // of one that is gone, its memory tells
  return alive && (!alive->has_storage() || alive->unsafe_storage().unsafeGetStorageImpl() != tensor.storage ||
                   alive->storage_offset() != tensor.offset);
}

std::string UsedMemory::moved() const {
  for (const Tensor& tensor : tensors_) {
    if (has_moved(tensor)) {
      return tensor.name;
    }
  }
  for (const Storage& storage : storages_) {
    if (has_moved(storage)) {
      return storage.name;
    }
  }
  return {};
}

struct MemoryWatch::Notes {
  struct Storage : UsedMemory::Storage {
    c10::Device device;
    size_t number;             ///< of storages that were noted before
    bool is_left_out = false;  ///< an operator made it, or no replay uses it
    bool is_argument = false;  ///< of an operator that runs in no other
  };
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, Storage> storages;
  std::unordered_map<const c10::TensorImpl*, UsedMemory::Tensor> tensors;

  Storage& note(const at::Tensor& tensor, const char* op) {
    const c10::Storage& storage = tensor.storage();
    const auto found = storages.find(storage.unsafeGetStorageImpl());
    if (found != storages.end()) {
      return found->second;
    }
    auto name = c10::str("a ", tensor.scalar_type(), " tensor of sizes ", tensor.sizes(), ", which ", op, " used");
    Storage made{{storage.getWeakStorageImpl(), storage.data(), std::move(name)}, tensor.device(), storages.size()};
    return storages.emplace(storage.unsafeGetStorageImpl(), std::move(made)).first->second;
  }

  struct Operator : at::ObserverContext {
    size_t known = 0;  ///< how many storages, when it began
  };

  std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    const bool is_outermost = operators_under_way++ == 0;
    const std::lock_guard lock(mutex);
    for (const c10::IValue& input : recorded_inputs(function)) {
      visit_memory(input, [&](const at::Tensor& tensor) {
        Storage& storage = note(tensor, function.name());
        storage.is_argument |= is_outermost;
        tensors.try_emplace(
            tensor.unsafeGetTensorImpl(),
            UsedMemory::Tensor{c10::weak_intrusive_ptr<c10::TensorImpl>(tensor.getIntrusivePtr()),
                               tensor.storage().unsafeGetStorageImpl(), tensor.storage_offset(), storage.name});
      });
    }
    auto call = std::make_unique<Operator>();
    call->known = storages.size();
    return call;
  }

  /// Results in memory that was not known when the operator began are its own.
  void end(at::ObserverContext& context, const at::RecordFunction& function) {
    --operators_under_way;
    const size_t known = static_cast<Operator&>(context).known;
    const std::lock_guard lock(mutex);
    for (const c10::IValue& output : function.outputs()) {
      visit_memory(output, [&](const at::Tensor& tensor) {
        Storage& storage = note(tensor, function.name());
        storage.is_left_out |= storage.number >= known;
      });
    }
  }
};

MemoryWatch::MemoryWatch() : notes_(std::make_shared<Notes>()) {
  using enum at::RecordScope;  // ops within a backward node or a script are not outermost
  observer_ = std::make_unique<ThreadObserver<Notes>>(
      notes_, std::unordered_set{FUNCTION, BACKWARD_FUNCTION, TORCHSCRIPT_FUNCTION});
}

MemoryWatch::~MemoryWatch() = default;

UsedMemory MemoryWatch::stop(c10::DeviceType device_type) {
  observer_.reset();
  const auto check = [](bool stayed, const std::string& name) {
    TORCH_CHECK(stayed, name,
                ", was freed or moved meanwhile, and a replay would use its old memory; keep the tensor, "
                "and change it in place");
  };
  UsedMemory used;
  const std::lock_guard lock(notes_->mutex);
  for (auto& [key, storage] : notes_->storages) {
    const bool has_moved = UsedMemory::has_moved(storage);
    if (storage.device.is_cpu()) {
      storage.is_left_out |= has_moved || !at::globalContext().isPinnedPtr(storage.data, device_type);
    } else if (!storage.is_left_out && has_moved) {
      check(!storage.is_argument, storage.name);
      storage.is_left_out = true;  // a kernel allocated it out of sight
    }
    if (!storage.is_left_out) {
      used.storages_.push_back(storage);
    }
  }
  for (auto& [key, tensor] : notes_->tensors) {
    if (!notes_->storages.at(tensor.storage).is_left_out && !tensor.tensor.expired()) {
      check(!UsedMemory::has_moved(tensor), tensor.name);
      used.tensors_.push_back(std::move(tensor));
    }
  }
  return used;
}

}  // namespace mezzo
