#pragma once

#include "mezzo/cpp20.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo {

/// Names the part of a model that the enclosing scope runs, for CastLog and FiniteTracer.
/// LibTorch's modules have no hooks for this. Scopes nest; each is one step of a path such as
/// "encoder.layer.3.output". Thread-local. Costs a few nanoseconds, also without a log or tracer.
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
  /// @param name  the name in `named_modules()`; must outlive the scope, as a literal does
  /// @param index  of a module among several of that name; the path has "name.index"
  [[nodiscard]] explicit ModuleScope(std::string_view name, int64_t index = -1);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  /// The path of this thread's scopes, outermost first, joined by dots; empty outside a scope.
  static std::string current_path();

 private:
  friend class AutocastStateGuard;
  struct WholePath {};
  /// Makes `path` alone the path of this thread during its lifetime.
  ModuleScope(std::string_view path, WholePath);

  std::string_view name_;
  int64_t index_;
  bool is_whole_path_ = false;
  const ModuleScope* outer_;
};

}  // namespace mezzo
