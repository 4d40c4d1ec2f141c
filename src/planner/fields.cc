// SPDX-License-Identifier: Apache-2.0
#include "planner/fields.h"

#include <boost/json.hpp>
#include <cmath>

#include "base/format.h"
#include "base/nearest.h"

namespace cistern::planner {
namespace {

namespace json = boost::json;

constexpr double kMostCount = 2'097'152;  // 2^21: products of three fit 64 bits

std::string Found(const json::value& value) {
  switch (value.kind()) {
    case json::kind::object: return "an object";
    case json::kind::array: return "an array";
    default: return Shown(json::serialize(value));
  }
}

}  // namespace

Fields::Fields(const json::object& object, std::string where) : object_(object), where_(std::move(where)) {}

const json::value* Fields::Find(std::string_view field) const {
  const json::value* value = object_.if_contains(field);
  return value && !value->is_null() ? value : nullptr;
}

const json::value* Fields::Need(std::string_view field) {
  const json::value* value = Find(field);
  if (!value) Fail(field, "is missing");
  return value;
}

void Fields::Fail(std::string_view field, std::string_view why) {
  if (status_.ok()) status_ = Status(Code::kInvalid, Text(where_, ": ", field, " ", why));
}

bool Fields::Has(std::string_view field) const { return Find(field) != nullptr; }

double Fields::NumberOf(std::string_view field, const json::value& value, double least, double most) {
  if (!value.is_number()) {
    Fail(field, Text("is ", Found(value), ": expected a number from ", least, " to ", most));
    return 0;
  }
  const auto number = value.to_number<double>();
  if (!std::isfinite(number) || number < least || number > most) {
    Fail(field, Text("is ", number, ": expected a number from ", least, " to ", most));
    return 0;
  }
  return number;
}

double Fields::Number(std::string_view field, double least, double most) {
  const json::value* value = Need(field);
  return value ? NumberOf(field, *value, least, most) : 0;
}

std::optional<double> Fields::OptionalNumber(std::string_view field, double least, double most) {
  const json::value* value = Find(field);
  if (!value) return std::nullopt;
  return NumberOf(field, *value, least, most);
}

std::uint64_t Fields::Count(std::string_view field, std::uint64_t least) {
  const double number = Number(field, static_cast<double>(least), kMostCount);
  if (number != std::floor(number)) Fail(field, Text("is ", number, ": expected a whole number"));
  return static_cast<std::uint64_t>(number);
}

std::uint64_t Fields::Count(std::string_view field, std::uint64_t least, std::uint64_t by_default) {
  return Has(field) ? Count(field, least) : by_default;
}

std::uint64_t Fields::CountOf(std::initializer_list<std::string_view> names) {
  for (const std::string_view name : names) {
    if (Has(name)) return Count(name);
  }
  return Count(*names.begin());
}

std::string Fields::String(std::string_view field) {
  const json::value* value = Need(field);
  if (!value) return {};
  if (!value->is_string()) {
    Fail(field, Text("is ", Found(*value), ": expected a text"));
    return {};
  }
  return std::string(value->get_string());
}

std::string Fields::String(std::string_view field, std::string_view by_default) {
  return Has(field) ? String(field) : std::string(by_default);
}

bool Fields::Flag(std::string_view field, bool by_default) {
  const json::value* value = Find(field);
  if (!value) return by_default;
  if (!value->is_bool()) Fail(field, Text("is ", Found(*value), ": expected true or false"));
  return value->is_bool() && value->get_bool();
}

const json::array* Fields::Array(std::string_view field) {
  const json::value* value = Find(field);
  if (value && !value->is_array()) Fail(field, Text("is ", Found(*value), ": expected an array"));
  return value ? value->if_array() : nullptr;
}

const json::object* Fields::Object(std::string_view field) {
  const json::value* value = Find(field);
  if (value && !value->is_object()) Fail(field, Text("is ", Found(*value), ": expected an object"));
  return value ? value->if_object() : nullptr;
}

Result<json::object> ParseObject(std::string_view text, std::string_view where) {
  json::error_code error;
  json::stream_parser parser;
  const std::size_t read = parser.write_some(text, error);
  if (!error && read < text.size()) error = json::error::extra_data;
  if (!error) parser.finish(error);
  if (error) {
    return Error(Code::kInvalid, Text(where, ": is not JSON (", error.message(), " at byte ", read + 1, ")"));
  }
  const json::value value = parser.release();
  if (!value.is_object()) {
    return Error(Code::kInvalid, Text(where, ": is ", Found(value), ": expected an object"));
  }
  return value.get_object();
}

}  // namespace cistern::planner
