#pragma once

#include <ATen/record_function.h>

#include <map>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>

namespace mezzo {

/// While it lives, tells `state` of each call of a scope on this thread, and on autograd's threads that work for it.
/// `begin(function)` returns an at::ObserverContext, or null, which `end(context, function)` gets. Calls that began
/// before the observer ended keep the state alive.
///
/// LibTorch copies callbacks to autograd's threads. They are plain functions, which find their state by
/// the handle of the callback.
template <class State>
class ThreadObserver {
 public:
  ThreadObserver(std::shared_ptr<State> state, std::unordered_set<at::RecordScope> scopes)
      : handle_(at::addThreadLocalCallback(
            at::RecordFunctionCallback(&begin, &end).needsInputs(true).needsOutputs(true).scopes(std::move(scopes)))) {
    const std::lock_guard lock(all().mutex);
    all().states.emplace(handle_, std::move(state));
  }
  ~ThreadObserver() {
    at::removeCallback(handle_);
    const std::lock_guard lock(all().mutex);
    all().states.erase(handle_);
  }
  ThreadObserver(const ThreadObserver&) = delete;
  ThreadObserver& operator=(const ThreadObserver&) = delete;

  /// The callback at work on this thread.
  static uint64_t current_handle() {
    for (const auto& entry : at::get_record_function_tls_().sorted_tls_callbacks_) {
      if (entry.enabled_ && entry.callback_.start() == &begin) {
        return entry.handle_;
      }
    }
    return at::INVALID_CALLBACK_HANDLE;
  }

  /// Its state, or null.
  static std::shared_ptr<State> current() {
    const std::lock_guard lock(all().mutex);
    const auto found = all().states.find(current_handle());
    return found == all().states.end() ? nullptr : found->second;
  }

 private:
  struct Context : at::ObserverContext {
    std::shared_ptr<State> state;
    std::unique_ptr<at::ObserverContext> call;
  };
  struct All {
    std::mutex mutex;
    std::map<uint64_t, std::shared_ptr<State>> states;
  };
  static All& all() {
    static All all;
    return all;
  }

  static std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& function) {
    auto state = current();
    auto call = state ? state->begin(function) : nullptr;
    if (!call) {
      return nullptr;
    }
    auto context = std::make_unique<Context>();
    context->state = std::move(state);
    context->call = std::move(call);
    return context;
  }

  static void end(const at::RecordFunction& function, at::ObserverContext* context) {
    if (context != nullptr) {
      auto& ours = static_cast<Context&>(*context);
      ours.state->end(*ours.call, function);
    }
  }

  const uint64_t handle_;
};

}  // namespace mezzo
