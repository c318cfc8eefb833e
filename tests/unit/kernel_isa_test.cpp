// Choice of the instruction set by name and by environment.
#include <gtest/gtest.h>

#include <cstdlib>

#include "volvelle/kernels/isa.hpp"

namespace volvelle {
namespace {

class Isa : public testing::Test {
 protected:
  void SetUp() override { unsetenv("VOLVELLE_ISA"); }
  void TearDown() override {
    unsetenv("VOLVELLE_ISA");
    ASSERT_TRUE(force_isa("").ok());
  }
};

TEST_F(Isa, EnvironmentForcesEachSupportedOne) {
  ASSERT_FALSE(supported_isas().empty());
  for (const std::string& name : supported_isas()) {
    setenv("VOLVELLE_ISA", name.c_str(), 1);
    ASSERT_TRUE(select_isa().ok()) << name;
    EXPECT_EQ(isa_name(), name);
  }
}

TEST_F(Isa, UnknownNameIsAnErrorThatListsTheKnownOnes) {
  setenv("VOLVELLE_ISA", "avx9", 1);
  const Status status = select_isa();
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(status.error().message.find("avx9"), std::string::npos);
  EXPECT_NE(status.error().message.find("avx2"), std::string::npos);
}

TEST_F(Isa, WithoutForceTheBestOneIsTaken) {
  ASSERT_TRUE(force_isa("scalar").ok());
  const std::vector<std::string> all = supported_isas();  // not narrowed by the forced one
  const Status status = select_isa();
  const bool fast = all.front() == "avx3" || all.front() == "avx2";
  EXPECT_EQ(status.ok(), fast);
  EXPECT_EQ(isa_name(), all.front());
}

}  // namespace
}  // namespace volvelle
