#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

// The wire format of protocol buffers, https://protobuf.dev/programming-guides/encoding/. The library is not used:
// LibTorch exports the symbols of one, and two versions in one process clash.

namespace mezzo::text {

/// Appends the fields of a message one after the other.
class ProtobufWriter {
 public:
  void integer(uint32_t field, int64_t value) {
    key(field, 0);
    varint(static_cast<uint64_t>(value));
  }
  void float32(uint32_t field, float value) {
    key(field, 5);
    append_little_endian(bytes_, std::bit_cast<uint32_t>(value));
  }
  void float64(uint32_t field, double value) {
    key(field, 1);
    append_little_endian(bytes_, std::bit_cast<uint64_t>(value));
  }
  void string(uint32_t field, std::string_view value) {
    announce(field, value.size());
    bytes_ += value;
  }
  void message(uint32_t field, const ProtobufWriter& value) { string(field, value.bytes_); }
  /// The beginning of a field; the caller writes its `size` bytes.
  void announce(uint32_t field, uint64_t size) {
    key(field, 2);
    varint(size);
  }

  const std::string& bytes() const { return bytes_; }

  template <class Integer>
  static void append_little_endian(std::string& out, Integer value) {
    for (size_t i = 0; i < sizeof(Integer); ++i) out += static_cast<char>(value >> (8 * i) & 0xFF);
  }

 private:
  void key(uint32_t field, uint32_t wire) { varint(uint64_t{field} << 3 | wire); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

/// Reads the fields of a message one after the other. Checks every length, and that the type in the file is the type
/// that the caller asks for.
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
  /// @param where  the beginning of an error message: the file, and the message in it.
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

  /// Refuses a field of unknown meaning.
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
