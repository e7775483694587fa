#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "text/io/text_input.h"

namespace mezzo::text {

/// The value of a JSON text, as JsonReader reads it.
/// @param where  the beginning of an error message
/// @throws c10::ValueError  for a text that JsonReader refuses
nlohmann::json parse_json(std::string_view text, const std::string& where);

/// The value in a file; messages begin with its name and the line.
nlohmann::json read_json(const std::filesystem::path& path);

/// The object in a file.
/// @throws c10::ValueError  also for another value
nlohmann::json read_json_object(const std::filesystem::path& path);

/// The text as a JSON string; bytes that are not UTF-8 become U+FFFD.
std::string quoted_json(std::string_view text);

/// Appends a member to a JSON object that is text, or makes the object of an empty text.
/// @param value  JSON
void add_json_member(std::string& object, std::string_view name, std::string_view value);

/// Reads one JSON value, piece by piece, without building a tree, and knows at every moment the line and the byte it is
/// at. For untrusted input: strict RFC 8259 and UTF-8, at most kMaxDepth nested values, no key twice in an object,
/// linear time. Each error is a c10::ValueError that names the place.
///
/// @code
/// TextInput input(source);
/// JsonReader reader(input, [&] { return file + ":" + std::to_string(reader.line()) + ": "; });
/// reader.begin_array();
/// while (reader.next_element()) texts.push_back(reader.string());
/// reader.expect_end();
/// @endcode
class JsonReader {
 public:
  enum class Type { kObject, kArray, kString, kNumber, kBool, kNull };

  /// As many as serde_json allows, so that files it accepts are accepted here.
  static constexpr size_t kMaxDepth = 127;

  /// @param input  must outlive this.
  /// @param where  returns the beginning of an error message; called only for an error.
  JsonReader(TextInput& input, std::function<std::string()> where);

  /// The type of the value that comes next. Fails where none does.
  Type peek();

  void begin_object();
  /// True with the next member's name in `key`, and its value comes next; false
  /// once the object has ended. Fails for a name that the object has twice: other readers take the first or the last.
  bool next_key(std::string& key);

  /// The first character inside the array that comes next, ']' if it is empty. 0 if another value comes next, or more
  /// than 256 characters of white space.
  char first_in_array();

  void begin_array();
  /// True when another element comes next; false once the array has ended.
  bool next_element();

  std::string string();
  /// The number as it is written, one of JSON's grammar and within the range of a double.
  /// Valid until the next one.
  std::string_view number();
  /// The number if it is a whole one from 0 to 2^64 - 1, written without sign, fraction and exponent; else nullopt.
  std::optional<uint64_t> unsigned_integer();
  /// true or false.
  bool boolean();
  /// Reads past any value.
  void skip() { walk(nullptr); }
  /// The value as JSON, without white space between its parts; numbers as they are written.
  std::string copy();
  /// Whether only white space is left.
  bool at_end();
  /// Fails unless only white space is left.
  void expect_end();
  /// The value. Whole numbers of up to 64 bits stay whole.
  nlohmann::json value();

  /// Whether messages about NaN advise null from now on, and those about True advise true. They must not if another
  /// value is needed. Initially true.
  void advise_null(bool advises) { advises_null_ = advises; }

  int64_t line() const { return line_; }
  size_t offset() const { return input_.offset(); }
  [[noreturn]] void fail(const std::string& found) const;

 private:
  void walk(std::string* copy);
  void skip_space();
  bool at(char c) { return !input_.at_end() && input_.peek() == c; }
  void expect(char c, const char* what);
  void open(char bracket);
  bool next(char closing);
  void literal(std::string_view word);
  size_t digits();
  uint32_t hex4();
  void escape(std::string& out);

  TextInput& input_;
  std::function<std::string()> where_;
  int64_t line_ = 1;
  std::string number_;  // the last one
  bool advises_null_ = true;
  /// An object or array that has begun.
  struct Open {
    bool is_empty = true;
    std::unordered_set<std::string> keys = {};
  };
  std::vector<Open> open_;
};

/// "an object", "a string", ...
std::string to_string(JsonReader::Type type);

}  // namespace mezzo::text
