// SPDX-License-Identifier: Apache-2.0
// Where a measurement's node has its flash, and what that node says of itself.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>

#include "cistern/cistern.h"

namespace cistern {

// A directory for the tier's file, removed with the object.
class FlashPlace {
 public:
  static Result<FlashPlace> Make(const std::string& parent);
  FlashPlace(FlashPlace&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  FlashPlace& operator=(FlashPlace&&) = delete;
  ~FlashPlace();

  const std::string& path() const { return path_; }
  // The tier's file, wherever below the directory it lies.
  std::string file() const;

 private:
  explicit FlashPlace(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

// A number of the node's status, by the names of the objects that lead there.
Result<double> StatusNumber(Store& store, std::initializer_list<std::string_view> names);

}  // namespace cistern
