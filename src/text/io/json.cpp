#include "text/io/json.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>
#include <utility>

#include "text/io/read_file.h"
#include "text/io/utf8.h"

namespace mezzo::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// How other languages write a value, and JSON's word for it. Python's json.dumps() writes the first three.
constexpr std::pair<std::string_view, std::string_view> kForeignWords[] = {
    {"NaN", "null"},  {"Infinity", "null"}, {"-Infinity", "null"}, {"None", "null"},  {"nan", "null"},
    {"inf", "null"},  {"-inf", "null"},     {"NULL", "null"},      {"Null", "null"},  {"undefined", "null"},
    {"True", "true"}, {"TRUE", "true"},     {"False", "false"},    {"FALSE", "false"}};
constexpr const char* kSingleQuotes = "not valid JSON: a string in single quotes. Write it in double quotes";

/// Above the largest double, as serde_json and Python's strictest readers refuse
/// it; below the smallest is 0.
bool overflows_double(const char* begin, const char* end) {
  double value = 0;
  if (std::from_chars(begin, end, value).ec != std::errc::result_out_of_range) return false;
  std::istringstream stream(std::string(begin, end));  // says which way it went, in no locale
  stream.imbue(std::locale::classic());
  stream >> value;
  return std::abs(value) > 1;
}

}  // namespace

std::string to_string(JsonReader::Type type) {
  switch (type) {
    case JsonReader::Type::kObject: return "an object";
    case JsonReader::Type::kArray: return "an array";
    case JsonReader::Type::kString: return "a string";
    case JsonReader::Type::kNumber: return "a number";
    case JsonReader::Type::kBool: return "true or false";
    case JsonReader::Type::kNull: return "null";
  }
  return "";
}

JsonReader::JsonReader(TextInput& input, std::function<std::string()> where)
    : input_(input), where_(std::move(where)) {}

void JsonReader::fail(const std::string& found) const { TORCH_CHECK_VALUE(false, where_(), in_one_line(found), "."); }

void JsonReader::skip_space() {
  for (; !input_.at_end(); input_.skip(1)) {
    const char c = input_.peek();
    if (c == '\n') ++line_;
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
  }
}

void JsonReader::expect(char c, const char* what) {
  skip_space();
  if (!at(c)) {
    fail(input_.at_end() ? fmt::format("the JSON ends where {} is expected", what)
                         : fmt::format("not valid JSON: {} expected", what));
  }
  input_.skip(1);
}

JsonReader::Type JsonReader::peek() {
  skip_space();
  if (input_.at_end()) fail("the JSON ends where a value is expected");
  const char c = input_.peek();
  if (c == '{') return Type::kObject;
  if (c == '[') return Type::kArray;
  if (c == '"') return Type::kString;
  if (is_digit(c)) return Type::kNumber;
  if (c == 't' || c == 'f') return Type::kBool;
  for (const auto& [word, in_json] : kForeignWords) {
    if (c == word.front() && input_.ahead(word.size()) == word) {
      const std::string advice = advises_null_       ? fmt::format("Write {} in its place", in_json)
                                 : in_json == "null" ? "Give it a value, or remove the row"
                                                     : fmt::format("For a text or a name, write \"{}\"", word);
      fail(fmt::format("not valid JSON: {} is not a JSON value. {}", word, advice));
    }
  }
  if (c == '-') return Type::kNumber;
  if (c == 'n') return Type::kNull;
  if (c == '\'') fail(kSingleQuotes);
  if (input_.ahead(3) == "\xEF\xBB\xBF") fail("not valid JSON: a byte order mark inside the file. Remove it");
  fail("not valid JSON: a value expected");
}

char JsonReader::first_in_array() {
  constexpr size_t kMostSpace = 256;
  if (peek() != Type::kArray) return '\0';
  for (size_t count = 2; count < kMostSpace; ++count) {  // one by one, so as not to wait for more of a pipe
    const std::string_view text = input_.ahead(count);
    if (text.size() < count) break;
    if (std::string_view(" \n\r\t").find(text.back()) == std::string_view::npos) return text.back();
  }
  return '\0';
}

void JsonReader::open(char bracket) {
  expect(bracket, bracket == '{' ? "'{'" : "'['");
  if (open_.size() == kMaxDepth) fail(fmt::format("JSON nested more than {} deep", kMaxDepth));
  open_.emplace_back();
}

bool JsonReader::next(char closing) {
  skip_space();
  if (at(closing)) {
    input_.skip(1);
    open_.pop_back();
    return false;
  }
  if (!open_.back().is_empty) {
    expect(',', closing == '}' ? "',' or '}'" : "',' or ']'");
    skip_space();
    if (at(closing)) fail("not valid JSON: a comma before the closing bracket");
  }
  open_.back().is_empty = false;
  return true;
}

void JsonReader::begin_object() { open('{'); }
void JsonReader::begin_array() { open('['); }
bool JsonReader::next_element() { return next(']'); }

bool JsonReader::next_key(std::string& key) {
  if (!next('}')) return false;
  key = string();
  const bool is_first = open_.back().keys.insert(key).second;
  if (!is_first) fail(fmt::format("the key '{}' occurs twice in one object. Keep one", key));
  expect(':', "':'");
  return true;
}

uint32_t JsonReader::hex4() {
  const std::string_view hex = input_.ahead(4);
  uint32_t value = 0;
  const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
  if (hex.size() != 4 || result.ptr != hex.data() + 4) {
    fail("not valid JSON: four hexadecimal digits expected after \\u");
  }
  input_.skip(4);
  return value;
}

void JsonReader::escape(std::string& out) {
  static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const char c = input_.at_end() ? '\0' : input_.take();
  if (const size_t i = kLetters.find(c); i != kLetters.npos) {
    out += kMeanings[i];
    return;
  }
  if (c != 'u') fail("not valid JSON: an unknown escape in a string");
  uint32_t code_point = hex4();
  if (code_point >= 0xD800 && code_point < 0xE000) {  // one of a pair of surrogates
    const bool pair = code_point < 0xDC00 && input_.ahead(2) == "\\u";
    if (pair) input_.skip(2);
    const uint32_t low = pair ? hex4() : 0;
    if (low < 0xDC00 || low > 0xDFFF) fail("not valid JSON: half a surrogate pair in a string");
    code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code_point);
}

std::string JsonReader::string() {
  skip_space();
  if (at('\'')) fail(kSingleQuotes);
  expect('"', "a string");
  std::string result;
  const auto is_plain = [](char c) { return c != '"' && c != '\\' && static_cast<uint8_t>(c) >= 0x20; };
  while (true) {
    const std::string_view text = input_.at_hand();
    const size_t plain = std::ranges::find_if_not(text, is_plain) - text.begin();
    result += text.substr(0, plain);
    input_.skip(plain);
    if (input_.at_end()) fail("the JSON ends inside a string");
    if (is_plain(input_.peek())) continue;  // the bytes at hand have ended, not the string
    const char c = input_.take();
    if (c == '\\') {
      escape(result);
      continue;
    }
    if (c != '"') fail("not valid JSON: a control character in a string. Write an escape such as \\n");
    if (find_invalid_utf8(result) != result.size()) fail("a string is not valid UTF-8");
    return result;
  }
}

size_t JsonReader::digits() {
  size_t count = 0;
  for (; !input_.at_end() && is_digit(input_.peek()); ++count) number_ += input_.take();
  if (count == 0) fail("not valid JSON: a digit expected");
  return count;
}

std::string_view JsonReader::number() {
  skip_space();
  number_.clear();
  if (at('-')) number_ += input_.take();
  const bool zero = at('0');
  if (digits() > 1 && zero) fail("not valid JSON: a number that starts with 0");
  if (at('.')) {
    number_ += input_.take();
    digits();
  }
  if (at('e') || at('E')) {
    number_ += input_.take();
    if (at('+') || at('-')) number_ += input_.take();
    digits();
  }
  if (overflows_double(number_.data(), number_.data() + number_.size())) fail("a number too large for a double");
  return number_;
}

std::optional<uint64_t> JsonReader::unsigned_integer() {
  const std::string_view text = number();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void JsonReader::literal(std::string_view word) {
  if (input_.ahead(word.size()) != word) fail(fmt::format("not valid JSON: {} expected", word));
  input_.skip(word.size());
}

bool JsonReader::boolean() {
  skip_space();
  const bool value = at('t');
  literal(value ? "true" : "false");
  return value;
}

std::string JsonReader::copy() {
  std::string text;
  walk(&text);
  return text;
}

/// Reads past a value and appends it to `copy`, unless that is null. Calls itself as deep as values are nested, at most
/// kMaxDepth.
void JsonReader::walk(std::string* copy) {
  const auto add = [&](std::string_view text) {
    if (copy != nullptr) *copy += text;
  };
  bool is_first = true;
  const auto add_comma = [&] {
    if (!std::exchange(is_first, false)) add(",");
  };
  switch (peek()) {
    case Type::kObject:
      begin_object();
      add("{");
      for (std::string key; next_key(key); walk(copy)) {
        add_comma();
        if (copy != nullptr) add(quoted_json(key) + ":");
      }
      return add("}");
    case Type::kArray:
      begin_array();
      add("[");
      for (; next_element(); walk(copy)) add_comma();
      return add("]");
    case Type::kString: {
      const std::string text = string();
      if (copy != nullptr) add(quoted_json(text));
      return;
    }
    case Type::kNumber: return add(number());
    case Type::kBool: return add(boolean() ? "true" : "false");
    case Type::kNull: literal("null"); return add("null");
  }
}

bool JsonReader::at_end() {
  skip_space();
  return input_.at_end();
}

void JsonReader::expect_end() {
  if (!at_end()) fail("not valid JSON: more text after its end");
}

nlohmann::json JsonReader::value() {
  switch (peek()) {
    case Type::kObject: {
      nlohmann::json object = nlohmann::json::object();
      begin_object();
      for (std::string key; next_key(key);) {
        nlohmann::json member = value();
        object.emplace(key, std::move(member));
      }
      return object;
    }
    case Type::kArray: {
      nlohmann::json array = nlohmann::json::array();
      begin_array();
      while (next_element()) array.push_back(value());
      return array;
    }
    case Type::kString: return string();
    case Type::kBool: return boolean();
    case Type::kNull: skip(); return nullptr;
    case Type::kNumber: return nlohmann::json::parse(number());
  }
  return nullptr;
}

namespace {

nlohmann::json read_document(JsonReader& reader) {
  nlohmann::json json = reader.value();
  reader.expect_end();
  return json;
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where) {
  TextInput input(text);
  JsonReader reader(input, [&] { return where; });
  return read_document(reader);
}

nlohmann::json read_json(const std::filesystem::path& path) {
  constexpr uint64_t kMaxBytes = uint64_t{256} << 20;  // far above any tokenizer's file, the largest that we read
  const std::string contents = read_file(path, kMaxBytes);
  check_is_utf8_text(path.string(), contents);
  std::string_view text = contents;
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  TextInput input(text);
  JsonReader reader(input, [&] { return fmt::format("{}:{}: ", path.string(), reader.line()); });
  return read_document(reader);
}

nlohmann::json read_json_object(const std::filesystem::path& path) {
  nlohmann::json json = read_json(path);
  TORCH_CHECK_VALUE(json.is_object(), path.string(), ": the file holds a JSON ", json.type_name(), ", not an object.");
  return json;
}

std::string quoted_json(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

void add_json_member(std::string& object, std::string_view name, std::string_view value) {
  if (object.empty()) {
    object = "{";
  } else {
    object.back() = ',';
  }
  object.append(quoted_json(name)).append(":").append(value).append("}");
}

}  // namespace mezzo::text
