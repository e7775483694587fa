#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace mezzo::text::onnx {

/// Writes a message in protobuf's wire format, field after field. LibTorch exports symbols of a protobuf of its own,
/// which a library of another version in the same process would get; what ONNX needs of the format is this.
/// @see https://protobuf.dev/programming-guides/encoding/
class ProtobufWriter {
 public:
  void integer(int field, int64_t value) {
    key(field, kVarint);
    varint(static_cast<uint64_t>(value));
  }
  void number(int field, float value) {
    key(field, kFixed32);
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) bytes_ += static_cast<char>(bits >> shift);
  }
  void string(int field, std::string_view value) {
    announce(field, value.size());
    bytes_ += value;
  }
  void message(int field, const ProtobufWriter& value) { string(field, value.bytes_); }
  /// What comes before `size` bytes of a field, which somebody else writes.
  void announce(int field, uint64_t size) {
    key(field, kLengthDelimited);
    varint(size);
  }

  const std::string& bytes() const { return bytes_; }

 private:
  static constexpr int kVarint = 0, kLengthDelimited = 2, kFixed32 = 5;

  void key(int field, int wire_type) { varint(static_cast<uint64_t>(field) << 3 | static_cast<uint64_t>(wire_type)); }
  void varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }

  std::string bytes_;
};

}  // namespace mezzo::text::onnx
