#include "mezzo/text/train/op_policy_file.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "mezzo/text/io/toml_text.h"
#include "text/io/printable.h"

namespace mezzo::text {
namespace {

/// One file being read: names the place of a mistake.
class PolicyReader {
 public:
  explicit PolicyReader(const std::filesystem::path& path) : path_(path.string()) {}

  OpPolicy read() const {
    const auto table = parse();
    OpPolicy policy;
    for (const auto& [key, value] : table) {  // by name: ops before preset
      check(key == "preset" || key == "ops", value,
            fmt::format("'{}' is not a part of an op policy: preset, ops", std::string_view(key.str())));
    }
    if (const auto* preset = table.get("preset")) {
      at_line(*preset, [&] { policy = OpPolicy::preset(text(*preset, "preset")); });
    }
    if (const auto* ops = table.get("ops")) {
      check(ops->is_table(), *ops, "'ops' must be a table: [ops]");
      set_lines(policy, *ops->as_table(), "");
    }
    TORCH_CHECK_VALUE(!policy.lines().empty(), path_,
                      ": lists no op. Give it a preset, as preset = \"cuda\", or lines under [ops].");
    return policy;
  }

 private:
  toml::table parse() const {
    const std::string contents = read_toml_text(path_);
    try {
      return toml::parse(contents, path_);
    } catch (const toml::parse_error& error) {
      TORCH_CHECK_VALUE(false, path_, ":", error.source().begin.line, ": ", printable(error.description()));
    }
  }

  /// A name with a dot that stands without quotes is a table in a table to TOML;
  /// here it is the op's overload.
  void set_lines(OpPolicy& policy, const toml::table& table, const std::string& prefix) const {
    for (const auto& [key, value] : table) {
      const std::string op = prefix + std::string(key.str());
      if (const auto* overloads = value.as_table()) {
        set_lines(policy, *overloads, op + ".");
      } else {
        at_line(value, [&, &node = value] { policy.set(op, parse_cast_policy(text(node, op))); });
      }
    }
  }

  std::string text(const toml::node& node, const std::string& name) const {
    check(node.is_string(), node, fmt::format("'{}' must be a string", name));
    return node.as_string()->get();
  }

  /// Runs `action`; a mistake in the file is told with its place.
  template <class Action>
  void at_line(const toml::node& node, const Action& action) const {
    try {
      action();
    } catch (const c10::ValueError& error) {
      const std::string message = printable(error.what_without_backtrace());
      const std::string where = place(node);
      TORCH_CHECK_VALUE(false, message.starts_with(where) ? message : where + message);
    }
  }

  void check(bool holds, const toml::node& node, const std::string& message) const {
    TORCH_CHECK_VALUE(holds, place(node), printable(message));  // the message quotes the value
  }

  std::string place(const toml::node& node) const { return fmt::format("{}:{}: ", path_, node.source().begin.line); }

  std::string path_;
};

}  // namespace

OpPolicy load_op_policy(const std::filesystem::path& path) {
  TORCH_CHECK(std::filesystem::exists(path) && !std::filesystem::is_directory(path), "cannot read the op policy ",
              path.string(), "; it is neither a preset (", c10::Join(", ", OpPolicy::preset_names()),
              ") nor a readable file");
  return PolicyReader(path).read();
}

OpPolicy parse_op_policy(const std::string& name_or_path) {
  const auto presets = OpPolicy::preset_names();
  const bool is_preset = std::find(presets.begin(), presets.end(), name_or_path) != presets.end();
  return is_preset ? OpPolicy::preset(name_or_path) : load_op_policy(name_or_path);
}

}  // namespace mezzo::text
