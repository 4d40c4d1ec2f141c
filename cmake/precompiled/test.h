// SPDX-License-Identifier: Apache-2.0
// What most tests include: see cmake/precompiled.cmake.
#pragma once
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "standard.h"
