#include "amp/policy_thread.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include "kernels/operator.h"

namespace mezzo {
namespace {

thread_local PolicyThread this_thread;

/// The policies' kernel, registered until the process ends.
torch::Library* register_policy_kernel() {
  kernels::library();  // tells of a second copy of mezzo
  TORCH_CHECK(
      !c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kPolicyKey),
      "autocast: op policies and logs need the dispatch key ", kPolicyKey,
      ", which another library in this process has taken (torchdistx uses it). Use only one of the two libraries.");
  auto* library = new torch::Library(torch::Library::IMPL, "_", kPolicyKey, __FILE__, __LINE__);
  library->fallback(torch::CppFunction::makeFromBoxedFunction<&call_by_policy>());
  return library;
}

}  // namespace

c10::DispatchKey autocast_key(c10::DeviceType device_type) {
  return at::autocast::get_autocast_dispatch_key_from_device_type(device_type);
}

PolicyThread* PolicyThread::current() {
  return c10::impl::tls_is_dispatch_key_included(kPolicyKey) ? &this_thread : nullptr;
}

PolicyThread& PolicyThread::ready() {
  [[gnu::used]] static auto* const library = register_policy_kernel();  // else LeakSanitizer sees no pointer to it
  return this_thread;
}

}  // namespace mezzo
