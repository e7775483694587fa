#include "text/json_reader.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <locale>
#include <sstream>

#include "text/utf8.h"

namespace mezzo::text {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

/// Above the largest double, as serde_json and Python's strictest readers refuse it; below the smallest is 0.
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

JsonReader::JsonReader(std::string_view json, std::function<std::string()> where, int64_t first_line)
    : json_(json), where_(std::move(where)), line_(first_line) {}

void JsonReader::fail(const std::string& found) const { TORCH_CHECK_VALUE(false, where_(), found, "."); }

void JsonReader::skip_space() {
  for (; position_ < json_.size(); ++position_) {
    const char c = json_[position_];
    if (c == '\n') ++line_;
    if (c != ' ' && c != '\n' && c != '\r' && c != '\t') return;
  }
}

void JsonReader::expect(char c, const char* what) {
  skip_space();
  if (!at(c)) {
    fail(position_ == json_.size() ? fmt::format("the JSON ends where {} is expected", what)
                                   : fmt::format("not valid JSON: {} expected", what));
  }
  ++position_;
}

JsonReader::Type JsonReader::peek() {
  skip_space();
  if (position_ == json_.size()) fail("the JSON ends where a value is expected");
  const char c = json_[position_];
  if (c == '{') return Type::kObject;
  if (c == '[') return Type::kArray;
  if (c == '"') return Type::kString;
  if (c == '-' || is_digit(c)) return Type::kNumber;
  if (c == 't' || c == 'f') return Type::kBool;
  if (c == 'n') return Type::kNull;
  fail("not valid JSON: a value expected");
}

void JsonReader::open(char bracket) {
  expect(bracket, bracket == '{' ? "'{'" : "'['");
  if (open_is_empty_.size() == kMaxDepth) fail(fmt::format("JSON nested more than {} deep", kMaxDepth));
  open_is_empty_.push_back(true);
}

bool JsonReader::next(char closing) {
  skip_space();
  if (at(closing)) {
    ++position_;
    open_is_empty_.pop_back();
    return false;
  }
  if (!open_is_empty_.back()) {
    expect(',', closing == '}' ? "',' or '}'" : "',' or ']'");
    skip_space();
    if (at(closing)) fail("not valid JSON: a comma before the closing bracket");
  }
  open_is_empty_.back() = false;
  return true;
}

void JsonReader::begin_object() { open('{'); }
void JsonReader::begin_array() { open('['); }
bool JsonReader::next_element() { return next(']'); }

bool JsonReader::next_key(std::string& key) {
  if (!next('}')) return false;
  key = string();
  expect(':', "':'");
  return true;
}

uint32_t JsonReader::hex4() {
  const std::string_view hex = json_.substr(position_, 4);
  uint32_t value = 0;
  const auto result = std::from_chars(hex.data(), hex.data() + hex.size(), value, 16);
  if (hex.size() != 4 || result.ptr != hex.data() + 4) {
    fail("not valid JSON: four hexadecimal digits expected after \\u");
  }
  position_ += 4;
  return value;
}

void JsonReader::escape(std::string& out) {
  static constexpr std::string_view kLetters = "\"\\/bfnrt", kMeanings = "\"\\/\b\f\n\r\t";
  const char c = position_ < json_.size() ? json_[position_] : '\0';
  ++position_;
  if (const size_t i = kLetters.find(c); i != kLetters.npos) {
    out += kMeanings[i];
    return;
  }
  if (c != 'u') fail("not valid JSON: an unknown escape in a string");
  uint32_t code_point = hex4();
  if (code_point >= 0xD800 && code_point < 0xE000) {  // one of a pair of surrogates
    const bool pair = code_point < 0xDC00 && json_.substr(position_, 2) == "\\u";
    if (pair) position_ += 2;
    const uint32_t low = pair ? hex4() : 0;
    if (low < 0xDC00 || low > 0xDFFF) fail("not valid JSON: half a surrogate pair in a string");
    code_point = 0x10000 + ((code_point - 0xD800) << 10) + (low - 0xDC00);
  }
  append_utf8(out, code_point);
}

std::string JsonReader::string() {
  expect('"', "a string");
  std::string result;
  while (true) {
    const size_t begin = position_;
    while (position_ < json_.size() && json_[position_] != '"' && json_[position_] != '\\' &&
           static_cast<uint8_t>(json_[position_]) >= 0x20) {
      ++position_;
    }
    const std::string_view plain = json_.substr(begin, position_ - begin);
    if (find_invalid_utf8(plain) != plain.size()) fail("a string is not valid UTF-8");
    result += plain;
    if (position_ == json_.size()) fail("the JSON ends inside a string");
    const char c = json_[position_++];
    if (c == '"') return result;
    if (c != '\\') fail("not valid JSON: a control character in a string, where an escape such as \\n is expected");
    escape(result);
  }
}

size_t JsonReader::digits() {
  const size_t begin = position_;
  while (position_ < json_.size() && is_digit(json_[position_])) ++position_;
  if (position_ == begin) fail("not valid JSON: a digit expected");
  return position_ - begin;
}

std::string_view JsonReader::number() {
  skip_space();
  const size_t begin = position_;
  if (at('-')) ++position_;
  const bool zero = at('0');
  if (digits() > 1 && zero) fail("not valid JSON: a number that starts with 0");
  if (at('.')) {
    ++position_;
    digits();
  }
  if (at('e') || at('E')) {
    ++position_;
    if (at('+') || at('-')) ++position_;
    digits();
  }
  if (overflows_double(json_.data() + begin, json_.data() + position_)) fail("a number too large for a double");
  return json_.substr(begin, position_ - begin);
}

std::optional<uint64_t> JsonReader::unsigned_integer() {
  const std::string_view text = number();
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

void JsonReader::literal(std::string_view word) {
  if (json_.substr(position_, word.size()) != word) fail(fmt::format("not valid JSON: {} expected", word));
  position_ += word.size();
}

void JsonReader::skip() {
  std::string key;
  std::vector<bool> is_object;  // the values opened here
  do {
    switch (peek()) {
      case Type::kObject:
        begin_object();
        is_object.push_back(true);
        break;
      case Type::kArray:
        begin_array();
        is_object.push_back(false);
        break;
      case Type::kString: string(); break;
      case Type::kNumber: number(); break;
      case Type::kBool: literal(at('t') ? "true" : "false"); break;
      case Type::kNull: literal("null"); break;
    }
    while (!is_object.empty() && !(is_object.back() ? next_key(key) : next_element())) is_object.pop_back();
  } while (!is_object.empty());
}

void JsonReader::expect_end() {
  skip_space();
  if (position_ != json_.size()) fail("not valid JSON: more text after its end");
}

}  // namespace mezzo::text
