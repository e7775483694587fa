#include "bindings.h"
#include "text/models/known_config_fields.h"
#include "text/tokenizers/tokenizer_config.h"

namespace {

using mezzo::text::FieldUse;

/// Of each known field its name, and whether it is "read", has "no effect", or takes "only" some values.
std::map<std::string, std::string> fields_of(std::span<const mezzo::text::KnownFields> tables, std::string_view kind) {
  std::map<std::string, std::string> fields;
  for (const auto& table : tables) {
    if (!table.has_kind(kind)) continue;
    for (const auto& field : table.fields) {
      fields[std::string(field.name)] = field.use == FieldUse::kRead       ? "read"
                                        : field.use == FieldUse::kNoEffect ? "no effect"
                                                                           : "only";
    }
  }
  return fields;
}

}  // namespace

void bind_known_fields(py::module_& m) {
  m.def("known_config_fields",
        [](const std::string& model_type) { return fields_of(mezzo::text::known_config_fields(), model_type); });
  m.def("known_tokenizer_fields", [] { return fields_of(mezzo::text::known_tokenizer_fields(), ""); });
}
