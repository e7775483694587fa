#include "mezzo/text/inference/int8_check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "mezzo/text/io/atomic_file.h"
#include "text/io/content_hash.h"
#include "text/io/json.h"

namespace mezzo::text {
namespace {

constexpr const char* kFile = "int8.json";

/// Of what decides on a model's outputs.
nlohmann::ordered_json hashes_of(const std::filesystem::path& folder) {
  nlohmann::ordered_json hashes;
  for (const char* name : {"model.safetensors", "config.json"}) {
    hashes[name] = hash_of_file(folder / name);
  }
  return hashes;
}

}  // namespace

void save_int8_check(const Int8Check& check, const std::filesystem::path& folder) {
  nlohmann::ordered_json json = {
      {"metric", check.metric}, {"fp32", check.in_float32}, {"int8", check.in_int8}, {"texts", check.texts}};
  if (check.same_answers) {
    json["same_answers"] = *check.same_answers;
  }
  json["of"] = hashes_of(folder);
  AtomicFile file(folder / kFile);
  file.write(json.dump(2) + "\n");
  file.commit();
}

bool remove_int8_check(const std::filesystem::path& folder) {
  std::error_code error;
  const auto path = folder / kFile;
  return !std::filesystem::is_regular_file(path, error) || std::filesystem::remove(path, error);
}

void require_int8_check(const std::filesystem::path& folder) {
  const auto path = folder / kFile;
  const std::string advice =
      fmt::format("mezzo quantize --model {} --data FILE compares int8 with fp32 on labelled texts", folder.string());
  std::error_code none;
  TORCH_CHECK_VALUE(std::filesystem::is_regular_file(path, none), path.string(),
                    " is not there, which says how good the model is in int8; ", advice);
  nlohmann::json json;
  try {
    json = read_json_object(path);
  } catch (const c10::ValueError&) {  // and what it lacks is said below
  }
  TORCH_CHECK_VALUE(json.is_object() && json.contains("of"), path.string(), " is damaged; ", advice);
  TORCH_CHECK_VALUE(json["of"] == nlohmann::json(hashes_of(folder)), path.string(),
                    ": it is of another model.safetensors or config.json than lie there now; ", advice);
}

}  // namespace mezzo::text
