#include "amp/policy_thread.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <tuple>

#include "amp/op_policy_table.h"
#include "amp/policy_kernel.h"
#include "amp/policy_region.h"
#include "mezzo/version.h"

namespace mezzo {
namespace {

using Home = PolicyThread& (*)();

/// Copies read each other's regions, so these must look alike: the version, and the sizes
/// that tell builds of it apart.
std::string this_mezzo() {
  return c10::str(MEZZO_VERSION, " (", sizeof(PolicyThread), ", ", sizeof(PolicyRegion), ", ", sizeof(OpPolicyTable),
                  ")");
}

/// Says where the regions of this process lie: which mezzo keeps them, and the address of a Home.
constexpr const char* kHomeOp = "mezzo::_policy_home";

PolicyThread& of_this_thread() {
  thread_local PolicyThread thread;
  return thread;
}

/// Null where no copy of mezzo has opened a region yet.
Home find_home() {
  const auto op = c10::Dispatcher::singleton().findSchema({kHomeOp, ""});
  if (!op) {
    return nullptr;
  }
  const auto [version, address] = op->typed<std::tuple<std::string, int64_t>()>().call();
  TORCH_CHECK(version == this_mezzo(), "AutocastGuard: two versions of mezzo are in this process, ", version, " and ",
              this_mezzo(), ". Only one of them can have op policies and logs; link both users with the same mezzo.");
  return reinterpret_cast<Home>(address);
}

Home make_home() {
  TORCH_CHECK(!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kPolicyKey),
              "AutocastGuard: op policies and logs need the dispatch key ", kPolicyKey,
              ", which another library in this process has taken (torchdistx uses it). Use one of the two.");
  // Never taken back: a copy of mezzo that found them may outlive this one's static storage.
  static auto* const kernel = new torch::Library(torch::Library::IMPL, "_", kPolicyKey, __FILE__, __LINE__);
  kernel->fallback(torch::CppFunction::makeFromBoxedFunction<&call_by_policy>());
  static auto* const op = new torch::Library(torch::Library::FRAGMENT, "mezzo", std::nullopt, __FILE__, __LINE__);
  op->def("_policy_home() -> (str version, int address)",
          [] { return std::make_tuple(this_mezzo(), reinterpret_cast<int64_t>(&of_this_thread)); });
  return &of_this_thread;
}

/// Another copy may be faster, or just at it: the key is taken a moment before it shows by whom.
Home find_or_make_home() {
  for (int patience = 100;; --patience) {
    if (auto* found = find_home()) {
      return found;
    }
    try {
      return make_home();
    } catch (const c10::Error&) {
      if (patience == 0) {
        throw;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

std::atomic<Home> known_home = nullptr;

}  // namespace

c10::DispatchKey autocast_key(c10::DeviceType device_type) {
  return at::autocast::get_autocast_dispatch_key_from_device_type(device_type);
}

PolicyThread* PolicyThread::current() {
  if (!c10::impl::tls_is_dispatch_key_included(kPolicyKey)) {
    return nullptr;
  }
  auto* home = known_home.load();
  if (home == nullptr) {
    known_home = home = find_home();
  }
  return home == nullptr ? nullptr : &home();
}

PolicyThread& PolicyThread::ready() {
  static const auto home = find_or_make_home();
  known_home = home;
  return home();
}

}  // namespace mezzo
