#include "mezzo/amp/module_scope.h"

namespace mezzo {
namespace {

thread_local const ModuleScope* innermost = nullptr;

}  // namespace

ModuleScope::ModuleScope(std::string_view name, int64_t index) : name_(name), index_(index), outer_(innermost) {
  innermost = this;
}

ModuleScope::ModuleScope(std::string_view path, WholePath) : ModuleScope(path) { is_whole_path_ = true; }

ModuleScope::~ModuleScope() { innermost = outer_; }

std::string ModuleScope::current_path() {
  std::string path;
  for (const ModuleScope* scope = innermost; scope != nullptr; scope = scope->outer_) {
    std::string step(scope->name_);
    if (scope->index_ >= 0) {
      step += "." + std::to_string(scope->index_);
    }
    if (!step.empty()) {
      path = path.empty() ? step : step + "." + path;
    }
    if (scope->is_whole_path_) {
      break;
    }
  }
  return path;
}

}  // namespace mezzo
