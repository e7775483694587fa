#include "text/json_file.h"

#include <c10/util/Exception.h>

#include "text/read_file.h"

namespace mezzo::text {
namespace {

constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
constexpr int kMaxDepth = 64;  // of nested arrays and objects: far more than any file of ours needs

}  // namespace

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  using Json = nlohmann::ordered_json;
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    TORCH_CHECK_VALUE(depth <= kMaxDepth, path.string(), ": JSON nested deeper than ", kMaxDepth, " levels");
    return true;
  };
  const std::string contents = read_file(path, kMaxBytes);
  try {
    Json json = Json::parse(contents, limit_depth);
    TORCH_CHECK_VALUE(json.is_object(), path.string(), ": expected a JSON object, found ", json.type_name());
    return json;
  } catch (const Json::parse_error& error) {
    TORCH_CHECK_VALUE(false, path.string(), ": not valid JSON: ", error.what());
  }
}

}  // namespace mezzo::text
