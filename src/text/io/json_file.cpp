#include "text/io/json_file.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "text/io/json_reader.h"
#include "text/io/read_file.h"

namespace mezzo::text {
namespace {

using PlainJson = nlohmann::json;

constexpr uint64_t kMaxBytes = uint64_t{256} << 20;  // far above any tokenizer's file, the largest that we read

template <class Number>
bool parse(std::string_view text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size();
}

/// Whole numbers stay whole where 64 bits hold them.
PlainJson read_number(JsonReader& reader) {
  const std::string_view text = reader.number();
  if (uint64_t value = 0; parse(text, value)) return value;
  if (int64_t value = 0; parse(text, value)) return value;
  double value = 0;
  parse(text, value);  // stays 0 for a number below the smallest
  return value;
}

/// Calls itself as deep as values are nested, which the reader bounds.
PlainJson read_value(JsonReader& reader) {
  switch (reader.peek()) {
    case JsonReader::Type::kObject: {
      PlainJson object = PlainJson::object();
      reader.begin_object();
      for (std::string key; reader.next_key(key);) {
        const auto [member, is_new] = object.emplace(key, nullptr);
        if (!is_new) reader.fail(fmt::format("the key '{}' occurs twice in one object. Keep one", key));
        *member = read_value(reader);
      }
      return object;
    }
    case JsonReader::Type::kArray: {
      PlainJson array = PlainJson::array();
      reader.begin_array();
      while (reader.next_element()) array.push_back(read_value(reader));
      return array;
    }
    case JsonReader::Type::kString: return reader.string();
    case JsonReader::Type::kNumber: return read_number(reader);
    case JsonReader::Type::kBool: return reader.boolean();
    case JsonReader::Type::kNull: reader.skip(); return nullptr;
  }
  return nullptr;
}

PlainJson read_document(JsonReader& reader) {
  PlainJson json = read_value(reader);
  reader.expect_end();
  return json;
}

}  // namespace

PlainJson parse_json(std::string_view text, const std::string& where) {
  TextInput input(text);
  JsonReader reader(input, [&] { return where; });
  return read_document(reader);
}

PlainJson read_json(const std::filesystem::path& path) {
  const std::string contents = read_file(path, kMaxBytes);
  check_is_utf8_text(path.string(), contents);
  std::string_view text = contents;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  TextInput input(text);
  JsonReader reader(input, [&] { return fmt::format("{}:{}: ", path.string(), reader.line()); });
  return read_document(reader);
}

PlainJson read_json_object(const std::filesystem::path& path) {
  PlainJson json = read_json(path);
  TORCH_CHECK_VALUE(json.is_object(), path.string(), ": the file holds a JSON ", json.type_name(), ", not an object.");
  return json;
}

}  // namespace mezzo::text
