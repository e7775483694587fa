#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "text/io/byte_source.h"

namespace mezzo::text {

/// The bytes of a text from its beginning to its end, from memory or from a source. A source is read block by block,
/// and only one block is held.
class TextInput {
 public:
  /// @param text  must outlive this.
  explicit TextInput(std::string_view text) : text_(text) {}
  /// @param source  must outlive this. Its errors come here and in later calls.
  explicit TextInput(ByteSource& source);
  TextInput(const TextInput&) = delete;
  TextInput& operator=(const TextInput&) = delete;

  bool at_end() { return position_ == text_.size() && !read_on(); }
  /// The next byte. There must be one.
  char peek() const { return text_[position_]; }
  char take() { return text_[position_++]; }

  /// The next bytes that were read already: empty only at the end. All views of the class are valid until the next call
  /// that may read.
  std::string_view at_hand() { return at_end() ? std::string_view() : text_.substr(position_); }
  /// The next `count` bytes, at most a block; fewer only at the end of the text.
  std::string_view ahead(size_t count);
  /// Moves past bytes that at_hand() or ahead() showed.
  void skip(size_t count) { position_ += count; }

  /// The number of bytes before the next one.
  size_t offset() const { return dropped_ + position_; }

 private:
  bool read_on();
  void append_block();

  ByteSource* source_ = nullptr;  // none if all of it has been read
  std::string block_;
  std::string_view text_;  // the bytes at hand, of `block_` or of the text in memory
  size_t position_ = 0;
  size_t dropped_ = 0;  // bytes of the file before `text_`
};

}  // namespace mezzo::text
