// SPDX-License-Identifier: Apache-2.0
#include "doctor/status_fields.h"

#include <boost/json/parse.hpp>

namespace cistern::doctor {

namespace json = boost::json;

std::optional<json::object> ParseStatus(std::string_view text) {
  boost::system::error_code error;
  json::value value = json::parse(text, error);
  if (error || !value.is_object()) return std::nullopt;
  json::object& object = value.get_object();
  return object.contains("node") && object.contains("memory") ? std::optional(std::move(object))
                                                              : std::nullopt;
}

const json::value* At(const json::object& status, std::string_view pointer) {
  const json::object* in = &status;
  for (;;) {
    pointer.remove_prefix(1);
    const std::size_t slash = pointer.find('/');
    const json::value* member = in->if_contains(pointer.substr(0, slash));
    if (slash == std::string_view::npos || member == nullptr) return member;
    in = member->if_object();
    if (in == nullptr) return nullptr;
    pointer.remove_prefix(slash);
  }
}

std::uint64_t NumberAt(const json::object& status, std::string_view pointer) {
  const json::value* value = At(status, pointer);
  if (value == nullptr) return 0;
  if (const bool* yes = value->if_bool()) return *yes ? 1 : 0;
  // Times have fractions: the double is below 2^64 where it is converted.
  if (const double* number = value->if_double())
    return *number > 0 && *number < 0x1p64 ? static_cast<std::uint64_t>(*number) : 0;
  boost::system::error_code error;
  return value->to_number<std::uint64_t>(error);
}

std::string TextAt(const json::object& status, std::string_view pointer) {
  const json::value* value = At(status, pointer);
  return value != nullptr && value->is_string() ? std::string(value->get_string()) : std::string();
}

}  // namespace cistern::doctor
