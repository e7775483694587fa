#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "text/io/json.h"

namespace mezzo::text {

/// A JSON value that knows its file and its name there, so that each check
/// makes a complete message.
class JsonField {
 public:
  JsonField(const nlohmann::json& value, const std::string& file, std::string name)
      : value_(&value), file_(&file), name_(std::move(name)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& file() const { return *file_; }
  const std::string& name() const { return name_; }
  bool is_null() const { return value_->is_null(); }
  bool has(const char* key) const { return value_->is_object() && value_->contains(key); }

  /// A member; a missing one is a null JsonField, which every `as_` function refuses.
  JsonField operator[](const std::string& key) const {
    static const nlohmann::json kNull;
    const auto member = as_object().find(key);
    return {member == value_->end() ? kNull : *member, *file_, name_.empty() ? key : name_ + "." + key};
  }

  const nlohmann::json& as_object() const { return expect(value_->is_object(), "an object"), *value_; }
  const nlohmann::json& as_array() const { return expect(value_->is_array(), "an array"), *value_; }
  bool as_bool() const { return expect(value_->is_boolean(), "true or false"), value_->get<bool>(); }
  const std::string& as_string() const {
    expect(value_->is_string(), "a string");
    return value_->get_ref<const std::string&>();
  }
  int32_t as_id() const;
  JsonField element(size_t i) const { return {(*value_)[i], *file_, name_ + "[" + std::to_string(i) + "]"}; }
  bool bool_or(const char* key, bool otherwise) const { return has(key) ? (*this)[key].as_bool() : otherwise; }
  /// The same, but null counts as a missing key.
  bool bool_unless_null(const char* key, bool otherwise) const {
    const JsonField field = (*this)[key];
    return field.is_null() ? otherwise : field.as_bool();
  }

  /// Refuses an object with another key than `keys`, as that may change ids in a way nobody here knows.
  /// @throws c10::ValueError  naming the first such key.
  void allowed_keys(std::initializer_list<std::string_view> keys) const;

  /// Refuses the file unless `holds`: the message has the expected and the actual value.
  /// @throws c10::ValueError
  void expect(bool holds, const std::string& expected) const;

 private:
  const nlohmann::json* value_;
  const std::string* file_;
  std::string name_;
};

}  // namespace mezzo::text
