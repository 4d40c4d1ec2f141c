// SPDX-License-Identifier: Apache-2.0
// Scalar arguments of calls: a value of a wrong type or out of range is kInvalid by the argument's name,
// where nanobind would raise a TypeError that names neither.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "base/format.h"
#include "errors.h"

namespace cistern::python {

namespace nb = nanobind;

// What a value has to be, for messages.
template <class T>
std::string WantedOf() {
  if constexpr (std::is_same_v<T, bool>)
    return "a bool";
  else if constexpr (std::is_unsigned_v<T>)
    return Text("a whole number from 0 to ", std::numeric_limits<T>::max());
  else if constexpr (std::is_integral_v<T>)
    return Text("a whole number of ", sizeof(T) * 8, " bits");
  else if constexpr (std::is_floating_point_v<T>)
    return "a number";
  else if constexpr (std::is_same_v<T, std::filesystem::path>)
    return "a text or a path";
  else
    return "a text";
}

// Throws kInvalid where the value is no T.
template <class T>
T ScalarFrom(nb::handle value, std::string_view name, std::string_view wanted = {}) {
  if constexpr (std::is_same_v<T, std::filesystem::path>) {
    std::string text;
    const nb::object path = nb::steal(PyOS_FSPath(value.ptr()));
    if (path.is_valid() && nb::try_cast(path, text)) return text;
    PyErr_Clear();
  } else {
    T out{};
    if (nb::try_cast(value, out)) return out;
  }
  Throw(Code::kInvalid, Text(name, " is ", nb::repr(value).c_str(), ", ",
                             wanted.empty() ? WantedOf<T>() : std::string(wanted), " is needed"));
}

template <class T>
inline constexpr bool kIsScalar =
    std::is_arithmetic_v<std::remove_cvref_t<T>> || std::is_same_v<std::remove_cvref_t<T>, std::string> ||
    std::is_same_v<std::remove_cvref_t<T>, std::filesystem::path>;

// An argument as Python gives it: a scalar is converted by TakeArgument, anything else by nanobind.
template <class T>
using Given = std::conditional_t<kIsScalar<T>, nb::handle, T>;

template <class T>
std::conditional_t<kIsScalar<T>, std::remove_cvref_t<T>, T> TakeArgument(Given<T> given,
                                                                         [[maybe_unused]] const char* name) {
  if constexpr (kIsScalar<T>)
    return ScalarFrom<std::remove_cvref_t<T>>(given, name);
  else
    return std::forward<T>(given);
}

// Names of a call's arguments, without its object.
template <class... Args>
using ArgumentNames = std::array<const char*, sizeof...(Args)>;

template <class R, class Object, class... Args, std::size_t... i>
auto Checked(R (*call)(Object, Args...), ArgumentNames<Args...> names, std::index_sequence<i...>) {
  return [call, names](Object object, Given<Args>... given) -> R {
    return call(object, TakeArgument<Args>(given, names[i])...);
  };
}
template <class R, class Object, class... Args, std::size_t... i>
auto Checked(R (Object::*call)(Args...), ArgumentNames<Args...> names, std::index_sequence<i...>) {
  return [call, names](Object& object, Given<Args>... given) -> R {
    return (object.*call)(TakeArgument<Args>(given, names[i])...);
  };
}

template <class R, class... Args, std::size_t... i>
auto CheckedFunction(R (*call)(Args...), ArgumentNames<Args...> names, std::index_sequence<i...>) {
  return [call, names](Given<Args>... given) -> R { return call(TakeArgument<Args>(given, names[i])...); };
}
template <class R, class... Args>
auto CheckedFunction(R (*call)(Args...), ArgumentNames<Args...> names) {
  return CheckedFunction(call, names, std::index_sequence_for<Args...>());
}

// None passes for every argument: the call judges it.
template <class>
auto NoneFor() {
  return nb::arg().none();
}

// Binds a method, given as a function of its object or as a member.
template <class Class, class R, class Object, class... Args>
void Define(nb::class_<Class>& to, const char* name, R (*call)(Object, Args...),
            ArgumentNames<Args...> names) {
  to.def(name, Checked(call, names, std::index_sequence_for<Args...>()), NoneFor<Args>()...);
}
template <class Class, class R, class... Args>
void Define(nb::class_<Class>& to, const char* name, R (Class::*call)(Args...),
            ArgumentNames<Args...> names) {
  to.def(name, Checked(call, names, std::index_sequence_for<Args...>()), NoneFor<Args>()...);
}

template <class R, class... Args>
void Define(nb::module_& to, const char* name, R (*call)(Args...), ArgumentNames<Args...> names) {
  to.def(name, CheckedFunction(call, names), NoneFor<Args>()...);
}

}  // namespace cistern::python
