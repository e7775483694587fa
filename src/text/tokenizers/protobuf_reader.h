#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo::text {

/// Reads the fields of a message of protocol buffers one after the other. Every length is checked; what a field is
/// read as must be what the file wrote.
///
/// @code
/// ProtobufReader message(bytes, "spiece.model");
/// while (message.next_field()) {
///   switch (message.field()) {
///     case 1: name = message.string("name"); break;
///     default: message.skip();
///   }
/// }
/// @endcode
class ProtobufReader {
 public:
  /// @param bytes  the message; must outlive the reader.
  /// @param where  what an error message begins with: the file, and the message in it.
  ProtobufReader(std::string_view bytes, std::string where) : rest_(bytes), where_(std::move(where)) {}

  /// Moves to the next field, which must then be read, or skipped. False at the end.
  bool next_field();

  /// The number of the field.
  uint32_t field() const { return field_; }

  // @param name  of the field, for messages.
  std::string_view bytes(const char* name);
  std::string string(const char* name);  // must be UTF-8
  ProtobufReader message(const char* name) { return {bytes(name), where_ + ": " + name}; }
  int32_t int32(const char* name);  // also of enumerations
  bool boolean(const char* name);
  float float32(const char* name);
  void skip();

  /// Refuses the field: nobody knows what it means.
  [[noreturn]] void refuse_field() const;

  const std::string& where() const { return where_; }

 private:
  enum class Wire : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };
  [[noreturn]] void fail(const std::string& what) const;
  uint64_t varint();
  std::string_view take(uint64_t size);
  void expect(Wire wire, const char* name) const;

  std::string_view rest_;
  std::string where_;
  uint32_t field_ = 0;
  Wire wire_ = Wire::kVarint;
};

}  // namespace mezzo::text
