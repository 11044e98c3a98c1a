"""The public test kit; importing the package loads none of its parts."""
