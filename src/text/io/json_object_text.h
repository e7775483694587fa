#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

namespace mezzo::text {

/// A JSON object as text, member after member.
class JsonObjectText {
 public:
  /// @param name, value  the latter is JSON itself.
  void add(std::string_view name, std::string_view value) {
    text_ += text_.empty() ? '{' : ',';
    text_ += quoted(name);
    text_ += ':';
    text_ += value;
  }
  /// The object; empty where nothing was added.
  std::string take() {
    if (!text_.empty()) text_ += '}';
    return std::exchange(text_, {});
  }

  /// As a JSON string; bytes that are no UTF-8 become U+FFFD.
  static std::string quoted(std::string_view text) {
    return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  }

 private:
  std::string text_;
};

}  // namespace mezzo::text
