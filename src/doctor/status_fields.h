// SPDX-License-Identifier: Apache-2.0
// Fields of a node's status: what is not there, or is of another type, is 0 or empty.
#pragma once

#include <boost/json/object.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cistern::doctor {

// None where the text is no status of a node.
std::optional<boost::json::object> ParseStatus(std::string_view text);
// `pointer`: "/memory/bytes", or of a histogram "/waits/tick/p99_us". Null: it is not there.
const boost::json::value* At(const boost::json::object& status, std::string_view pointer);
std::uint64_t NumberAt(const boost::json::object& status, std::string_view pointer);
std::string TextAt(const boost::json::object& status, std::string_view pointer);

}  // namespace cistern::doctor
