#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "text/io/byte_source.h"

namespace mezzo::text {

/// The bytes of a text from its beginning to its end, from memory or from a file. Of a file, no
/// more is read than is asked for (but for a block), and no more is held than a block.
class TextInput {
 public:
  /// @param text  must outlive this.
  explicit TextInput(std::string_view text) : text_(text) {}
  /// @param file  decompressed, where it is compressed: see open_bytes().
  /// @throws c10::ValueError  naming the file, here and in later calls, where it cannot be read.
  static TextInput open(const std::filesystem::path& file) { return TextInput(open_bytes(file)); }
  TextInput(const TextInput&) = delete;
  TextInput& operator=(const TextInput&) = delete;

  bool at_end() { return position_ == text_.size() && !read_on(); }
  /// The next byte. There must be one.
  char peek() const { return text_[position_]; }
  char take() { return text_[position_++]; }

  /// What is at hand of the bytes that come next: empty only at the end. Like all views from here,
  /// valid until the next call that may read on.
  std::string_view at_hand() { return at_end() ? std::string_view() : text_.substr(position_); }
  /// The next `count` bytes, at most a block; fewer only where the text ends.
  std::string_view ahead(size_t count);
  /// Moves past bytes that at_hand() or ahead() showed.
  void skip(size_t count) { position_ += count; }

  /// How many bytes lie behind.
  size_t offset() const { return dropped_ + position_; }

 private:
  explicit TextInput(std::unique_ptr<ByteSource> source);
  bool read_on();
  void append_block();

  std::unique_ptr<ByteSource> source_;  // none where all of it has been read
  std::string block_;
  std::string_view text_;  // what is at hand, of `block_` or of the text in memory
  size_t position_ = 0;
  size_t dropped_ = 0;  // bytes of the file before `text_`
};

}  // namespace mezzo::text
