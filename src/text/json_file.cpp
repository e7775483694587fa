#include "text/json_file.h"

#include <c10/util/Exception.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <system_error>

namespace mezzo::text {
namespace {

constexpr int kMaxDepth = 64;  // of nested arrays and objects: far more than any file of ours needs

}  // namespace

std::string read_file(const std::filesystem::path& path, uint64_t max_bytes) {
  std::error_code error;
  TORCH_CHECK_VALUE(!std::filesystem::is_directory(path, error), path.string(), ": is a folder, expected a file");
  std::ifstream in(path, std::ios::binary);
  TORCH_CHECK_VALUE(in.good(), path.string(), ": cannot be opened: ", std::strerror(errno));
  const uint64_t size = std::filesystem::file_size(path, error);
  TORCH_CHECK_VALUE(!error, path.string(), ": cannot be read: ", error.message());
  TORCH_CHECK_VALUE(size <= max_bytes, path.string(), ": has ", size, " bytes, at most ", max_bytes, " are read");
  std::string contents(size, '\0');
  in.read(contents.data(), static_cast<std::streamsize>(size));
  TORCH_CHECK_VALUE(static_cast<uint64_t>(in.gcount()) == size, path.string(), ": changed while it was read");
  return contents;
}

nlohmann::ordered_json read_json_object(const std::filesystem::path& path) {
  using Json = nlohmann::ordered_json;
  const auto limit_depth = [&](int depth, Json::parse_event_t, Json&) {
    TORCH_CHECK_VALUE(depth <= kMaxDepth, path.string(), ": JSON nested deeper than ", kMaxDepth, " levels");
    return true;
  };
  const std::string contents = read_file(path);
  try {
    Json json = Json::parse(contents, limit_depth);
    TORCH_CHECK_VALUE(json.is_object(), path.string(), ": expected a JSON object, found ", json.type_name());
    return json;
  } catch (const Json::parse_error& error) {
    TORCH_CHECK_VALUE(false, path.string(), ": not valid JSON: ", error.what());
  }
}

}  // namespace mezzo::text
