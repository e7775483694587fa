#include "text/tokenizers/pattern.h"

#include <string>

namespace mezzo::text {

Pattern read_pattern(const JsonField& field, Pattern (*known_regex)(const JsonField&)) {
  field.expect(field.has("String") != field.has("Regex"), "{\"String\": …} or {\"Regex\": …}");
  field.allowed_keys({"String", "Regex"});
  if (field.has("Regex")) return known_regex(field["Regex"]);
  const std::string text = field["String"].as_string();
  field["String"].expect(!text.empty(), "a string that is not empty");
  return [text](std::string_view in) { return in.starts_with(text) ? text.size() : 0; };
}

}  // namespace mezzo::text
