module floor

go 1.21
