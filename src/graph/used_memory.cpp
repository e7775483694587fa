#include "graph/used_memory.h"

#include <ATen/Context.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>

#include <map>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "amp/recorded_inputs.h"

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

  /// Of an operator that begins. @return how many storages are known
  size_t begin(const at::RecordFunction& function, bool is_outermost) {
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
    return storages.size();
  }

  /// Of an operator that ends: results in memory that was not known when it began are its own.
  void end(const at::RecordFunction& function, size_t known) {
    const std::lock_guard lock(mutex);
    for (const c10::IValue& output : function.outputs()) {
      visit_memory(output, [&](const at::Tensor& tensor) {
        Storage& storage = note(tensor, function.name());
        storage.is_left_out |= storage.number >= known;
      });
    }
  }
};

/// Plain functions, which find their watch by its handle: LibTorch copies that to the threads of a backward pass.
struct MemoryWatch::Callbacks {
  struct Operator : at::ObserverContext {
    std::shared_ptr<Notes> notes;
    size_t known = 0;
  };
  struct Watches {
    std::mutex mutex;
    std::map<uint64_t, std::shared_ptr<Notes>> notes;
  };

  static Watches& watches() {
    static Watches all;
    return all;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto call = std::make_unique<Operator>();
    for (const auto& entry : at::get_record_function_tls_().sorted_tls_callbacks_) {
      if (entry.callback_.start() == &begin) {
        const std::lock_guard lock(watches().mutex);
        const auto found = watches().notes.find(entry.handle_);
        call->notes = found == watches().notes.end() ? nullptr : found->second;
      }
    }
    if (call->notes) {
      call->known = call->notes->begin(function, /*is_outermost=*/operators_under_way == 0);
    }
    ++operators_under_way;
    return call;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    --operators_under_way;
    if (const auto& call = static_cast<Operator&>(*context); call.notes) {
      call.notes->end(function, call.known);
    }
  }
};

MemoryWatch::MemoryWatch() : notes_(std::make_shared<Notes>()) {
  using enum at::RecordScope;  // what runs in a backward node or a script is not outermost
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&Callbacks::begin, &Callbacks::end)
                                           .needsInputs(true)
                                           .needsOutputs(true)
                                           .scopes({FUNCTION, BACKWARD_FUNCTION, TORCHSCRIPT_FUNCTION}));
  const std::lock_guard lock(Callbacks::watches().mutex);
  Callbacks::watches().notes.emplace(handle_, notes_);
}

MemoryWatch::~MemoryWatch() { remove(); }

void MemoryWatch::remove() {
  if (std::exchange(notes_, nullptr)) {
    at::removeCallback(handle_);
    const std::lock_guard lock(Callbacks::watches().mutex);
    Callbacks::watches().notes.erase(handle_);
  }
}

UsedMemory MemoryWatch::stop(c10::DeviceType device_type) {
  const auto notes = notes_;
  remove();
  const auto check = [](bool stayed, const std::string& name) {
    TORCH_CHECK(stayed, name,
                ", was freed or moved meanwhile, and a replay would use its old memory; keep the tensor, "
                "and change it in place");
  };
  UsedMemory used;
  const std::lock_guard lock(notes->mutex);
  for (auto& [key, storage] : notes->storages) {
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
  for (auto& [key, tensor] : notes->tensors) {
    if (!notes->storages.at(tensor.storage).is_left_out && !tensor.tensor.expired()) {
      check(!UsedMemory::has_moved(tensor), tensor.name);
      used.tensors_.push_back(std::move(tensor));
    }
  }
  return used;
}

}  // namespace mezzo
