#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo {

/// Names the part of a model that the enclosing scope runs, for CastLog and FiniteTracer:
/// LibTorch's modules have no hooks that could tell. Scopes nest; each is one step of a path such
/// as "encoder.layer.3.output". Thread-local. Costs a few nanoseconds, whether anybody asks or not.
///
/// @code
/// torch::Tensor forward(torch::Tensor x) {
///   for (size_t i = 0; i < layers_->size(); ++i) {
///     const mezzo::ModuleScope scope("layer", i);
///     x = layers_[i]->forward(x);
///   }
///   return x;
/// }
/// @endcode
class ModuleScope {
 public:
  /// @param name  as `named_modules()` would give it; must outlive the scope, as a literal does.
  /// @param index  of a module among several of that name; "name.index" in the path.
  [[nodiscard]] explicit ModuleScope(std::string_view name, int64_t index = -1);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  /// The path of this thread's scopes, outermost first, joined by dots; empty outside of any.
  static std::string current_path();

 private:
  friend class AutocastStateGuard;
  struct WholePath {};
  /// `path` alone is this thread's path while it lives.
  ModuleScope(std::string_view path, WholePath);

  std::string_view name_;
  int64_t index_;
  bool is_whole_path_ = false;
  const ModuleScope* outer_;
};

}  // namespace mezzo
