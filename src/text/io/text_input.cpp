#include "text/io/text_input.h"

#include <span>

namespace mezzo::text {
namespace {

constexpr size_t kBlockBytes = 64 << 10;

}  // namespace

TextInput::TextInput(ByteSource& source) : source_(&source) { append_block(); }

/// Adds one read to the bytes that were not moved past; nothing at the end.
void TextInput::append_block() {
  dropped_ += position_;
  block_.erase(0, position_);
  position_ = 0;
  const size_t kept = block_.size();
  block_.resize(kept + kBlockBytes);
  const size_t count = source_->read(std::span(block_).subspan(kept));
  block_.resize(kept + count);
  text_ = block_;
  if (count == 0) source_ = nullptr;
}

bool TextInput::read_on() {
  if (source_ == nullptr) return false;
  append_block();
  return position_ < text_.size();
}

std::string_view TextInput::ahead(size_t count) {
  while (text_.size() - position_ < count && source_ != nullptr) append_block();
  return text_.substr(position_, count);
}

}  // namespace mezzo::text
