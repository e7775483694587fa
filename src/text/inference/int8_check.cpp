#include "mezzo/text/inference/int8_check.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>

#include "mezzo/text/io/atomic_file.h"
#include "mezzo/text/io/safetensors.h"
#include "text/io/content_hash.h"
#include "text/io/json.h"

namespace mezzo::text {
namespace {

constexpr const char* kFile = "int8.json";

/// Of what decides on a model's outputs.
nlohmann::ordered_json hashes_of(const std::filesystem::path& folder) {
  nlohmann::ordered_json hashes;
  for (const char* name : {kWeightsFile, "config.json"}) {
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
  json["accepted"] = check.is_accepted;
  json["of"] = hashes_of(folder);
  AtomicFile file(folder / kFile);
  file.write(json.dump(2) + "\n");
  file.commit();
}

std::string int8_warning(const std::filesystem::path& folder) {
  nlohmann::json json;
  try {
    json = read_json_object(folder / kFile);
  } catch (const c10::ValueError&) {  // missing or damaged: not checked
  }
  const bool is_checked = json.is_object() && json.contains("of") && json["of"] == nlohmann::json(hashes_of(folder));
  if (is_checked && json.value("accepted", nlohmann::json(true)) == nlohmann::json(true)) return "";
  return is_checked ? fmt::format("warning: {}: int8 is worse than fp32 by more than --max-loss of mezzo check-int8",
                                  (folder / kFile).string())
                    : fmt::format(
                          "warning: {} was not checked in int8; mezzo check-int8 --model {} --data FILE compares it "
                          "with fp32",
                          folder.string(), folder.string());
}

}  // namespace mezzo::text
