#include "text/io/protobuf.h"

#include <c10/util/Exception.h>

#include <bit>
#include <limits>

#include "text/io/utf8.h"

namespace mezzo::text {

void ProtobufReader::fail(const std::string& what) const {
  TORCH_CHECK_VALUE(false, where_, ": ", what, "; fetch the file again");
}

void ProtobufReader::refuse_field() const { fail("the field " + std::to_string(field_) + " is unknown to mezzo"); }

uint64_t ProtobufReader::varint() {
  uint64_t value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (rest_.empty()) break;
    const auto byte = static_cast<unsigned char>(rest_.front());
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) break;
    value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return value;
  }
  fail("a number is cut off or too long");
}

std::string_view ProtobufReader::take(uint64_t size) {
  if (size > rest_.size()) fail("the file ends inside of a field");
  const std::string_view taken = rest_.substr(0, static_cast<size_t>(size));
  rest_.remove_prefix(taken.size());
  return taken;
}

bool ProtobufReader::next_field() {
  if (rest_.empty()) return false;
  const uint64_t tag = varint();
  const uint64_t wire = tag & 7, field = tag >> 3;
  const bool is_known = wire == 0 || wire == 1 || wire == 2 || wire == 5;
  if (!is_known || field == 0 || field >= uint64_t{1} << 29) fail("a field has an unknown type or number");
  wire_ = static_cast<Wire>(wire);
  field_ = static_cast<uint32_t>(field);
  return true;
}

void ProtobufReader::expect(Wire wire, const char* name) const {
  if (wire_ != wire) fail(std::string(name) + " has an unexpected type");
}

std::string_view ProtobufReader::bytes(const char* name) {
  expect(Wire::kBytes, name);
  return take(varint());
}

std::string ProtobufReader::string(const char* name) {
  const std::string_view text = bytes(name);
  if (find_invalid_utf8(text) != text.size()) fail(std::string(name) + " is not UTF-8");
  return std::string(text);
}

int32_t ProtobufReader::int32(const char* name) {
  expect(Wire::kVarint, name);
  const auto value = static_cast<int64_t>(varint());  // negative ones have all 64 bits
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    fail(std::string(name) + " has more than 32 bits");
  }
  return static_cast<int32_t>(value);
}

bool ProtobufReader::boolean(const char* name) {
  expect(Wire::kVarint, name);
  return varint() != 0;
}

float ProtobufReader::float32(const char* name) {
  expect(Wire::kFixed32, name);
  uint32_t bits = 0;
  const std::string_view four = take(4);
  for (size_t i = 4; i-- > 0;) bits = bits << 8 | static_cast<unsigned char>(four[i]);
  return std::bit_cast<float>(bits);
}

void ProtobufReader::skip() {
  switch (wire_) {
    case Wire::kVarint: varint(); break;
    case Wire::kFixed64: take(8); break;
    case Wire::kBytes: take(varint()); break;
    case Wire::kFixed32: take(4); break;
  }
}

}  // namespace mezzo::text
