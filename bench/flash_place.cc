// SPDX-License-Identifier: Apache-2.0
#include "flash_place.h"

#include <stdlib.h>

#include <boost/json.hpp>
#include <cerrno>
#include <filesystem>

#include "base/fd.h"
#include "base/format.h"

namespace cistern {

Result<FlashPlace> FlashPlace::Make(const std::string& parent) {
  std::string path = parent + "/cistern-bench-flash-XXXXXX";
  if (mkdtemp(path.data()) == nullptr) return Error(Code::kIoError, Text(path, ": ", ErrnoText(errno)));
  return FlashPlace(path);
}

FlashPlace::~FlashPlace() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

std::string FlashPlace::file() const {
  for (const auto& entry : std::filesystem::recursive_directory_iterator(path_)) {
    if (entry.is_regular_file() && entry.path().filename() == "flash") return entry.path().string();
  }
  return {};
}

Result<double> StatusNumber(Store& store, std::initializer_list<std::string_view> names) {
  auto text = store.StatusJson();
  if (!text) return Error(std::move(text.error()));
  boost::json::value value = boost::json::parse(*text);
  for (const std::string_view name : names) {
    const auto* object = value.if_object();
    const auto* found = object == nullptr ? nullptr : object->if_contains(name);
    if (found == nullptr) return Error(Code::kMismatch, Text("status has no ", name));
    boost::json::value next = *found;
    value = std::move(next);
  }
  return value.to_number<double>();
}

}  // namespace cistern
